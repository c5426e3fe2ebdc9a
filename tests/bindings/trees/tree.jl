# A rank of one_tree_test.py in Julia.
using DDP

layer_of(value) = Dict("w" => fill(value, 3), "bias" => fill(value, 2))
tree_of(value) = Dict("layers" => [layer_of(value), layer_of(value)], "again" => ((fill(value, 1),),))

function check(found, value)
    leaves = [found["again"][1][1]; [vcat(values(layer)...) for layer in found["layers"]]...]
    length(leaves) == 11 && all(==(value), leaves) || error("$found is not of $value")
end

const group = Group()
parallel = DataParallel(tree_of(Float32(group.rank == 0)), group)
check(parallel.params, 1)
for step in 0:2
    check(mean_gradients(parallel, tree_of(Float32(step + group.rank))), step + (group.world_size - 1) / 2)
end
println("rank $(group.rank) (Julia): ", join((parameter.name for parameter in parallel.context.parameters), " "))
