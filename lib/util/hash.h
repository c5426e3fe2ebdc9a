// A 64-bit hash that is the same on every machine (FNV-1a): for comparing tables and plans between
// ranks, not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace libddp {

class Hash {
public:
    Hash& add(std::string_view bytes) {
        add(bytes.size());
        for (unsigned char c : bytes) mix(c);
        return *this;
    }
    Hash& add(std::uint64_t number) {
        for (int i = 0; i < 8; ++i) mix(static_cast<unsigned char>(number >> (8 * i)));
        return *this;
    }
    // Eight bytes at a time, for data that is large. Not the same as add(bytes), nor where the
    // order of bytes is another.
    Hash& add_words(std::string_view bytes) {
        add(bytes.size());
        // Four at once: each word waits for the one before it, and for no other.
        std::uint64_t values[] = {value_, ~value_, value_ * 3, value_ * 5};
        std::uint64_t words[4];
        for (; bytes.size() >= sizeof words; bytes.remove_prefix(sizeof words)) {
            std::memcpy(words, bytes.data(), sizeof words);
            for (int i = 0; i < 4; ++i) mix_word(values[i], words[i]);
        }
        for (const std::uint64_t value : values) mix_word(value_, value);
        for (unsigned char c : bytes) mix(c);
        return *this;
    }
    std::uint64_t value() const { return value_; }

private:
    void mix(unsigned char c) { value_ = (value_ ^ c) * 0x100000001b3ull; }
    static void mix_word(std::uint64_t& value, std::uint64_t word) {
        value = (value ^ word) * 0x9e3779b97f4a7c15ull;
        value ^= value >> 32;
    }
    std::uint64_t value_ = 0xcbf29ce484222325ull;
};

inline std::uint64_t hash_of(const void* data, std::size_t bytes) {
    return Hash().add_words({static_cast<const char*>(data), bytes}).value();
}

}  // namespace libddp
