// Reads values one after another. The bytes may be damaged: what is not there is an error.
#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace libddp::record {

class Bytes {
public:
    explicit Bytes(std::string_view bytes) : left_(bytes) {}

    template <class Value>
    Value value() {
        Value value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string text(char last = '\0') {
        const std::size_t end = left_.find(last);
        if (end == std::string_view::npos) throw std::runtime_error("a text has no end");
        std::string text(left_.substr(0, end));
        left_.remove_prefix(end + 1);
        return text;
    }
    std::string_view take(std::size_t count) {
        if (count > left_.size()) throw std::runtime_error("it is too short");
        const std::string_view taken = left_.substr(0, count);
        left_.remove_prefix(count);
        return taken;
    }
    std::string_view rest() const { return left_; }
    bool empty() const { return left_.empty(); }

private:
    std::string_view left_;
};

}  // namespace libddp::record
