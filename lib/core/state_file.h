// A file with elements of parameters: a rank's part of a save. It is in the safetensors format: 8
// bytes with the length of a JSON header, the header, and the elements. What safetensors does not
// know of is in the header's "__metadata__". The elements have a checksum for each kChunk bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/param_table.h"

namespace libddp {

// Elements of a parameter in memory of the program.
struct StateArray {
    std::string key;
    std::int32_t param = -1;
    std::int64_t first = 0, count = 0;
    ddp_dtype dtype = DDP_F32;
    std::byte* data = nullptr;
    bool replicated = false;

    std::size_t bytes() const;
};

// Where elements of a parameter are in a file.
struct StateEntry {
    std::string param, key;
    std::int64_t first = 0, count = 0;
    ddp_dtype dtype = DDP_F32;
    std::uint64_t offset = 0;  // after the header
};

// A file about itself.
struct StateFacts {
    std::string save;  // the same in all files of a save
    std::int32_t rank = 0, world = 1;
    std::string note;
    std::map<std::string, std::vector<std::int64_t>> shapes;  // of the parameters
};

struct StateHeader {
    static constexpr std::size_t kChunk = std::size_t{4} << 20;
    // The limit in the library of the format's authors.
    static constexpr std::size_t kMost = 100'000'000;

    StateFacts facts;
    std::vector<StateEntry> entries;
    std::vector<std::uint64_t> checksums;
    std::uint64_t begin = 0, bytes = 0;  // of the elements in the file

    // text: the JSON. bytes: that stand behind it. Throws IO, saying what is wrong.
    static StateHeader parse(std::string_view text, std::uint64_t bytes);
    // Opens a file and reads its header. Throws IO.
    static StateHeader read(const std::string& path);
};

// Writes a new file, and waits until the disk has it. Throws IO or LIMIT, and leaves no file then.
void write_state_file(const std::string& path, const StateFacts& facts,
                      std::vector<StateArray> arrays, const ParamTable& table);

// Bytes of a file on their way to memory. offset: after the header.
struct FileCopy {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::byte* to = nullptr;
};

// Reads them, chunk by chunk, each compared with its checksum first. Throws IO.
void read_state_file(const std::string& path, const StateHeader& header,
                     std::vector<FileCopy> copies);

// A small file, in the place of one of that name, at once.
void replace_file(const std::string& path, std::string_view text);
// Waits until the disk has the names in it. Throws IO.
void sync_folder(const std::string& folder);

}  // namespace libddp
