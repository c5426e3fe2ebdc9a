// Gradients that ranks add up share by share as numbers of 8 bits, wherever that is computed.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/eight_bits.h"
#include "unit/cuda/codec_world.h"

namespace libddp::testing_cuda {

inline const std::vector<Named> kShareCodecs{{"int8Nearest", {DDP_CODEC_INT8, 0, 256, 0}},
                                             {"int8Stochastic", {DDP_CODEC_INT8, 1, 32, 0}},
                                             {"e4m3Nearest", {DDP_CODEC_E4M3, 0, 2048, 0}},
                                             {"e4m3Stochastic", {DDP_CODEC_E4M3, 1, 256, 0}},
                                             {"e5m2Nearest", {DDP_CODEC_E5M2, 0, 100, 0}},
                                             {"e5m2Stochastic", {DDP_CODEC_E5M2, 1, 1000, 0}}};

struct SharesSetting {
    ddp_codec codec;
    ddp_dtype dtype;
    std::vector<std::size_t> counts;
    std::size_t world = 2, shift = 0;
    bool feedback = true, spoilt = false, keeps = false;
    double scale = 1;
};

struct SharesRank {
    Bytes gradients, residuals, losses, sent, result;
};

// Site computes: it has upload(bytes), read(pointer, bytes), encode(batch), recode(batch, scale) and
// decode(batch, scale), and encode_scratch(batch).
template <class Site>
class Shares {
public:
    Shares(const SharesSetting& setting, std::uint32_t seed) : s_(setting) {
        cut();
        std::mt19937 random(seed);
        for (std::size_t r = 0; r < s_.world; ++r) {
            SharesRank& rank = ranks.emplace_back();
            std::size_t numbers = s_.shift;
            rank.gradients = Bytes(s_.shift * item(), std::byte{0xa5});
            for (std::size_t i = 0; i < s_.counts.size(); ++i) {
                const bool bad = s_.spoilt && i % 5 == 4 && r == i % s_.world;
                const auto kind = static_cast<int>((i + seed) % kKinds);
                const Bytes values = gradient(s_.dtype, s_.counts[i], bad ? kKinds : kind, random);
                rank.gradients.insert(rank.gradients.end(), values.begin(), values.end());
                numbers += s_.counts[i];
            }
            rank.residuals = gradient(compute_dtype(s_.dtype), numbers, 0, random);
            rank.losses = Bytes(numbers * real());
            rank.sent = rank.result = Bytes(share_bytes_ * s_.world, std::byte{0xcd});
        }
    }

    void run(Site& site) {
        for (std::size_t r = 0; r < s_.world; ++r) {
            On on(site, *this, r);
            on.batch.keeps = s_.keeps;
            site.encode(on.batch);
            on.bring_back();
        }
        if (s_.keeps) return;
        std::vector<Bytes> results;
        for (std::size_t owner = 0; owner < s_.world; ++owner) {
            Bytes gathered;
            for (const SharesRank& rank : ranks)
                gathered.insert(gathered.end(), share(rank.sent, owner),
                                share(rank.sent, owner + 1));
            On on(site, *this, owner);
            on.batch.gathered = on.upload(gathered);
            on.batch.size = share_bytes_;
            on.batch.world = static_cast<std::int32_t>(s_.world);
            on.batch.drawer = eight_bits::kOfTheSum;
            const auto sent = site.upload(Bytes(share_bytes_, std::byte{0xcd}));
            on.batch.sent = sent.get();
            on.take_share(owner);
            site.recode(on.batch, s_.scale);
            on.bring_back();
            results.push_back(site.read(sent.get(), share_bytes_));
        }
        for (std::size_t r = 0; r < s_.world; ++r) {
            ranks[r].result.clear();
            for (const Bytes& result : results)
                ranks[r].result.insert(ranks[r].result.end(), result.begin(), result.end());
            On on(site, *this, r);
            on.batch.gathered = on.upload(ranks[r].result);
            on.take_losses(r);
            site.decode(on.batch, 1);
            on.bring_back();
        }
    }

    std::vector<SharesRank> ranks;

private:
    // A piece of a parameter: its blocks of one owner.
    struct Piece {
        std::size_t param, whole, first, count, element;
        std::size_t owner, packed;
    };

    // Blocks of all parameters, dealt out in order.
    void cut() {
        const std::size_t block = s_.codec.block;
        std::size_t blocks = 0, number = 0, element = s_.shift;
        for (const std::size_t count : s_.counts) blocks += (count + block - 1) / block;
        std::vector<std::size_t> used(s_.world);
        for (std::size_t i = 0; i < s_.counts.size(); ++i) {
            const std::size_t whole = pieces_.size();
            for (std::size_t first = 0; first < s_.counts[i]; first += block, ++number) {
                const std::size_t owner = number * s_.world / blocks;
                const std::size_t count = std::min(block, s_.counts[i] - first);
                const bool more = pieces_.size() > whole && pieces_.back().owner == owner;
                if (more)
                    pieces_.back().count += count;
                else
                    pieces_.push_back(
                        {i, whole, first, count, element + first, owner, used[owner]});
                used[owner] += packed_size(s_.codec, s_.dtype, count);
            }
            element += s_.counts[i];
        }
        for (const std::size_t bytes : used)
            share_bytes_ = std::max(share_bytes_, (bytes + 7) / 8 * 8);
    }

    Bytes::const_iterator share(const Bytes& message, std::size_t owner) const {
        return message.begin() + static_cast<std::ptrdiff_t>(owner * share_bytes_);
    }
    std::size_t item() const { return dtype_size(s_.dtype); }
    std::size_t real() const { return dtype_size(compute_dtype(s_.dtype)); }

    // A rank's batch with all pieces, and its memory where it is computed.
    struct On {
        On(Site& where, Shares& shares, std::size_t number)
            : site(where), all(shares), rank(shares.ranks[number]) {
            gradients = site.upload(rank.gradients);
            residuals = site.upload(rank.residuals);
            losses = site.upload(rank.losses);
            sent = site.upload(rank.sent);
            for (const Piece& piece : all.pieces_) {
                const std::size_t at = piece.element * all.real();
                parts.push_back({gradients.get() + piece.element * all.item(),
                                 all.s_.feedback ? residuals.get() + at : nullptr, piece.count,
                                 piece.owner * all.share_bytes_ + piece.packed});
                places.push_back({piece.first, static_cast<std::uint32_t>(piece.param),
                                  static_cast<std::uint32_t>(piece.whole), nullptr});
            }
            batch.codec = all.s_.codec;
            batch.dtype = all.s_.dtype;
            batch.world = 1;
            batch.size = rank.sent.size();
            batch.sent = sent.get();
            batch.step = 77;
            batch.drawer = static_cast<std::uint32_t>(number);
            bind();
            scratch = site.upload(Bytes(site.encode_scratch(batch) + 64));
            batch.scratch = scratch.get();
        }
        On(const On&) = delete;
        On& operator=(const On&) = delete;

        void bind() {
            batch.parts = parts.data();
            batch.places = places.data();
            batch.part_count = parts.size();
        }
        void* upload(const Bytes& bytes) {
            gathered = site.upload(bytes);
            return gathered.get();
        }
        // Only the owner's pieces, as they lie in its share.
        void take_share(std::size_t owner) {
            take_losses(owner);
            std::vector<ddp_codec_part> own;
            std::vector<ddp_codec_place> own_places;
            for (std::size_t i = 0; i < parts.size(); ++i) {
                if (all.pieces_[i].owner != owner) continue;
                own.push_back({nullptr, nullptr, parts[i].count, all.pieces_[i].packed});
                own_places.push_back(places[i]);
            }
            parts = own;
            places = own_places;
            bind();
        }
        void take_losses(std::size_t owner) {
            for (std::size_t i = 0; i < parts.size(); ++i)
                if (all.s_.feedback && all.pieces_[i].owner == owner)
                    places[i].loss = losses.get() + all.pieces_[i].element * all.real();
        }
        void bring_back() {
            rank.gradients = site.read(gradients.get(), rank.gradients.size());
            rank.residuals = site.read(residuals.get(), rank.residuals.size());
            rank.losses = site.read(losses.get(), rank.losses.size());
            rank.sent = site.read(sent.get(), rank.sent.size());
        }

        Site& site;
        Shares& all;
        SharesRank& rank;
        std::shared_ptr<std::byte> gradients, residuals, losses, sent, gathered, scratch;
        std::vector<ddp_codec_part> parts;
        std::vector<ddp_codec_place> places;
        ddp_codec_batch batch{};
    };

    const SharesSetting s_;
    std::vector<Piece> pieces_;
    std::size_t share_bytes_ = 8;
};

// Memory of the CPU.
struct HostSite {
    static std::shared_ptr<std::byte> upload(const Bytes& bytes) {
        const std::shared_ptr<std::byte> memory(
            static_cast<std::byte*>(std::aligned_alloc(64, bytes.size() / 64 * 64 + 64)),
            &std::free);
        std::copy(bytes.begin(), bytes.end(), memory.get());
        return memory;
    }
    static Bytes read(const std::byte* from, std::size_t bytes) { return {from, from + bytes}; }
};
struct OnTheCpu : HostSite {
    static std::size_t encode_scratch(const ddp_codec_batch& batch) {
        return cpu::encode_scratch(batch);
    }
    static void encode(const ddp_codec_batch& batch) { cpu::encode(batch); }
    static void recode(const ddp_codec_batch& batch, double scale) { cpu::recode(batch, scale); }
    static void decode(const ddp_codec_batch& batch, double scale) { cpu::decode(batch, scale); }
};

// The same on the CPU and on the site.
template <class Site>
void compare_shares(const SharesSetting& s, std::uint32_t seed, Site& site) {
    OnTheCpu host;
    Shares<OnTheCpu> expected(s, seed);
    Shares<Site> actual(s, seed);
    expected.run(host);
    actual.run(site);
    for (std::size_t r = 0; r < s.world; ++r) {
        const SharesRank &wanted = expected.ranks[r], &got = actual.ranks[r];
        ASSERT_EQ(got.sent, wanted.sent) << "rank " << r;
        ASSERT_EQ(got.result, wanted.result) << "rank " << r;
        ASSERT_TRUE(same(got.gradients.data(), wanted.gradients.data(),
                         got.gradients.size() / dtype_size(s.dtype), s.dtype))
            << "rank " << r;
        ASSERT_EQ(got.residuals, wanted.residuals) << "rank " << r;
    }
}

}  // namespace libddp::testing_cuda
