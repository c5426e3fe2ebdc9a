# For killed_test.py: rank 1 kills itself in the fifth step.
using DDP

function train(group)
    gradient = ones(Float32, 64)
    for step in 1:1_000_000
        step == 5 && group.rank == 1 && ccall(:raise, Cint, (Cint,), 9)
        allreduce!(group, gradient)
    end
end

train(Group())
