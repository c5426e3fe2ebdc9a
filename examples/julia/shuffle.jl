# shuffle.jl: deals the samples of all ranks anew, as between two epochs. Each rank has read files of its own; after this any sample may
# be on any rank.
#
#     ddprun -n 2 julia shuffle.jl
using DDP, Random

group = Group()
rank, world = group.rank, group.world_size
samples = collect(1000 * rank:1000 * rank + 999)  # a sample is a number here
to = rand(MersenneTwister(rank), 1:world, length(samples))
send = samples[sortperm(to)]

# First how many, then the samples.
send_counts, recv_counts = [count(==(r), to) for r in 1:world], zeros(Int, world)
all_to_all!(group, recv_counts, send_counts)
recv = zeros(Int, sum(recv_counts))
all_to_all!(group, recv, send; recv_counts=recv_counts, send_counts=send_counts)

println("rank $rank: $(length(recv)) samples, sum $(sum(recv)), $(recv_counts[rank + 1]) of its own")
