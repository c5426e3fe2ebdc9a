#include "why/sights.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "util/host.h"
#include "util/private_file.h"
#include "util/text.h"

namespace libddp::record {
namespace {

constexpr const char* kSights = "seen-by-launcher-on-";  // and the host
constexpr char kBeforeWords = '\t';

void read_file(const std::filesystem::path& path, std::vector<Sight>& sights) {
    FileIn file(path);
    Sight sight;
    for (int kind = 0; file >> sight.launch_rank >> kind >> sight.realtime_ns &&
                       std::getline(file >> std::ws, sight.text);) {
        sight.kind = static_cast<Sight::Kind>(kind);
        const std::size_t words = std::min(sight.text.find(kBeforeWords), sight.text.size());
        sight.words = sight.text.substr(std::min(words + 1, sight.text.size()));
        sight.text.resize(words);
        sights.push_back(sight);
    }
}

}  // namespace

std::string sights_path(const std::string& folder) {
    return folder + "/" + kSights + host_name();
}

bool holds_sights(std::string_view file_name) {
    return file_name.starts_with(kSights);
}

std::string add_sight(const std::string& folder, const Sight& sight) try {
    write_private_file(sights_path(folder), O_APPEND,
                       str(sight.launch_rank, ' ', static_cast<int>(sight.kind), ' ',
                           sight.realtime_ns, ' ', sight.text, kBeforeWords, sight.words, '\n'));
    return "";
} catch (const std::runtime_error& error) {
    return error.what();
}

std::vector<Sight> read_sights(const std::string& folder) {
    std::vector<Sight> sights;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (holds_sights(entry.path().filename().string())) read_file(entry.path(), sights);
    return sights;
}

}  // namespace libddp::record
