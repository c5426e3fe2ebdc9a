# Reads the pair of IDX files in which MNIST is published.

const LABELS, IMAGES = 0x00000801, 0x00000803

"The content of a file, plain or compressed."
function content(folder, name)
    path = joinpath(folder, name)
    isfile(path * ".gz") && return read(`gzip -dc $(path * ".gz")`)
    isfile(path) || error("cannot open $path, nor the same with .gz")
    return read(path)
end

"An IDX file as an array of bytes. Its last dimension changes fastest, as Julia's first: the extents are reversed."
function read_idx(folder, name, magic)
    bytes = content(folder, name)
    header = ntoh.(reinterpret(UInt32, bytes[1:(4 + 4 * (magic & 0xff))]))
    extents = reverse(Int.(header[2:end]))
    if header[1] != magic || length(bytes) != 4 * length(header) + prod(extents)
        error("$(joinpath(folder, name)) is not the IDX file that it should be")
    end
    return reshape(bytes[(4 * length(header) + 1):end], extents...)
end

"Images as columns of numbers from 0 (paper) to 1 (ink), and which digit each shows. name: \"train\" or \"t10k\"."
function load_digits(folder, name)
    images = read_idx(folder, name * "-images-idx3-ubyte", IMAGES)
    labels = read_idx(folder, name * "-labels-idx1-ubyte", LABELS)
    size(images, 3) == length(labels) || error("$name: $(size(images, 3)) images, but $(length(labels)) labels")
    return Float32.(reshape(images, :, length(labels))) ./ 255f0, Int.(labels)
end
