#include "rendezvous/slurm.h"

#include <charconv>

namespace libddp {
namespace {

std::optional<std::int64_t> number(std::string_view text) {
    std::int64_t value = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
    return value;
}

}  // namespace

std::optional<std::string> first_slurm_host(std::string_view nodelist) {
    std::string host;
    while (!nodelist.empty() && nodelist.front() != ',') {
        char letter = nodelist.front();
        nodelist.remove_prefix(1);
        if (letter == ']') return std::nullopt;
        if (letter != '[') {
            host += letter;
            continue;
        }
        auto close = nodelist.find(']');
        if (close == std::string_view::npos) return std::nullopt;
        std::string_view first = nodelist.substr(0, close);
        first = first.substr(0, first.find_first_of(",-"));
        if (!number(first)) return std::nullopt;
        host += first;  // as text: the zeros in front belong to the name
        nodelist.remove_prefix(close + 1);
    }
    if (host.empty()) return std::nullopt;
    return host;
}

std::optional<std::int32_t> slurm_tasks_on_node(std::string_view list, std::int64_t node) {
    while (!list.empty() && node >= 0) {
        auto comma = list.find(',');
        std::string_view item = list.substr(0, comma);
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        std::int64_t nodes = 1;
        if (auto times = item.find("(x"); times != std::string_view::npos) {
            if (item.back() != ')') return std::nullopt;
            auto repeated = number(item.substr(times + 2, item.size() - times - 3));
            if (!repeated) return std::nullopt;
            nodes = *repeated;
            item = item.substr(0, times);
        }
        auto tasks = number(item);
        if (!tasks || *tasks > INT32_MAX) return std::nullopt;
        if (node < nodes) return static_cast<std::int32_t>(*tasks);
        node -= nodes;
    }
    return std::nullopt;
}

}  // namespace libddp
