# For the tests beside this file.
using DDP, Test
using DDP: check, plan, stats
const C = DDP.LibDDP

# How much longer than on a free machine something may take: tests/support/slack.h.
const SLACK = parse(Float64, get(ENV, "DDP_TEST_SLACK", "1")) * (1 + parse(Float64, get(ENV, "DDP_TEST_BUSY", "0")))

"A group of this process only."
alone() = Group(; rank=0, world_size=1, timeout=20)

"Names of C's functions and flags in a message, but for the statuses, which Julia names alike."
names_of_c(message) = [each.match for each in eachmatch(r"\b(?:ddp|DDP)_\w+", message)
                       if isdefined(C, Symbol(each.match)) && !startswith(each.match, "DDP_ERROR_")]

"f throws an error of libddp's of this status whose message has these words, and no names of C; returns it."
function fails(f, status, words...)
    caught = try
        f()
        nothing
    catch error
        error
    end
    @test caught isa DDPError
    caught isa DDPError || return caught
    @test caught.status == status
    @test isempty(names_of_c(caught.message))
    for word in words
        @test occursin(word, caught.message)
    end
    return caught
end

"f throws an ArgumentError whose message has these words."
function refused(f, words...)
    caught = try
        f()
        nothing
    catch error
        error
    end
    @test caught isa ArgumentError
    for word in words
        @test caught isa ArgumentError && occursin(word, caught.msg)
    end
end

"A committed context with views of three numbers."
function committed(group, count=2; options...)
    ctx = Context(group; options...)
    for i in 1:count
        register!(ctx, "p$(i - 1)"; size=3)
    end
    commit!(ctx)
    return ctx
end

function resident_kib()
    for line in eachline("/proc/self/status")
        startswith(line, "VmRSS") && return parse(Int, split(line)[2])
    end
end
