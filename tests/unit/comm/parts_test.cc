// Operations of a link whose ranks have parts of different sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/shm/transport.h"
#include "comm/link.h"
#include "comm/registry.h"
#include "kernels/on_device.h"
#include "support/fake_device/fake_device.h"
#include "util/error.h"

using namespace libddp;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

using Counts = std::vector<std::uint64_t>;

// A backend that knows parts of one size only, and has `ready`.
void register_plain_backend() {
    static const ddp_backend plain = [] {
        ddp_backend backend = *shm_backend();
        backend.name = "shm-plain";
        backend.capabilities = [](void* transport) -> std::uint32_t {
            return shm_backend()->capabilities(transport) &
                   ~(DDP_BACKEND_COUNTS | DDP_BACKEND_ALL_TO_ALL);
        };
        return backend;
    }();
    static const bool once = (register_backend(&plain), true);
    static_cast<void>(once);
}

// Runs body(rank, link) on two ranks.
template <class Body>
void on_two(const std::string& backend, Body body) {
    register_plain_backend();
    const auto server = open_store({"tcp://127.0.0.1:0", true, 5'000, ""});
    const auto run = [&](std::int32_t rank) {
        GroupConfig config;
        config.rank = rank;
        config.world = 2;
        config.backend = backend;
        config.timeout_ms = 10'000;
        config.store = open_store({server->describe(), false, 5'000, ""});
        config.prefix = "parts/";
        const auto link = Link::create(config);
        body(rank, *link);
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
}

Collective in_parts(ddp_collective_kind kind, std::vector<float>& data, const Counts& counts,
                    ddp_reduce_op op = DDP_SUM) {
    return {.kind = kind,
            .recv = data.data(),
            .count = data.size(),
            .dtype = DDP_F32,
            .op = op,
            .counts = std::make_shared<const Counts>(counts)};
}

class PartsOfALink : public testing::TestWithParam<const char*> {};

TEST_P(PartsOfALink, AreTheMeanAndComeTogetherAgain) {
    on_two(GetParam(), [](std::int32_t rank, Link& link) {
        std::vector<float> data(4, static_cast<float>(2 * rank));
        link.run(in_parts(DDP_COLLECTIVE_REDUCE_SCATTER, data, {3, 1}, DDP_AVG), {});
        for (std::size_t i = rank == 0 ? 0 : 3; i < (rank == 0 ? 3u : 4u); ++i)
            EXPECT_EQ(data[i], 1);
        data.assign(4, static_cast<float>(rank + 5));
        link.run(in_parts(DDP_COLLECTIVE_ALLGATHER, data, {3, 1}), {});
        EXPECT_THAT(data, ElementsAre(5, 5, 5, 6));
    });
}

// Each byte once, on any backend.
TEST_P(PartsOfALink, OfOthersAreTaken) {
    for (const Counts& counts : {Counts{3, 1}, Counts{0, 5}, Counts{90'000, 70'001}})
        on_two(GetParam(), [&](std::int32_t rank, Link& link) {
            const std::size_t size = counts[0] + counts[1];
            const auto own = [&](std::size_t i) { return (i < counts[0] ? 0 : 1) == rank; };
            std::vector<float> data(size), taken(size);
            for (std::size_t i = 0; i < size; ++i) data[i] = own(i) ? static_cast<float>(i + 1) : 0;
            Collective c = in_parts(DDP_COLLECTIVE_ALLGATHER, data, counts);
            std::size_t bytes_taken = 0;
            c.take = [&](const void* from, std::size_t offset, std::size_t bytes) {
                ASSERT_LE(offset + bytes, size * sizeof(float));
                std::memcpy(reinterpret_cast<std::byte*>(taken.data()) + offset, from, bytes);
                bytes_taken += bytes;
            };
            link.run(c, {});
            EXPECT_EQ(bytes_taken, counts[rank == 0 ? 1 : 0] * sizeof(float));
            for (std::size_t i = 0; i < size; ++i)
                ASSERT_EQ(taken[i], own(i) ? 0 : static_cast<float>(i + 1)) << i;
        });
}

// Whole blocks in order, final where they are. The taker writes there.
TEST_P(PartsOfALink, AreTakenInBlocks) {
    for (const Counts& counts : {Counts{3, 1}, Counts{0, 5}, Counts{90'000, 70'001}})
        on_two(GetParam(), [&](std::int32_t rank, Link& link) {
            std::vector<float> data(counts[0] + counts[1]);
            for (std::size_t i = 0; i < data.size(); ++i)
                data[i] = static_cast<float>(i + 2 * static_cast<std::size_t>(rank));
            const std::size_t begin = rank == 0 ? 0 : counts[0];
            const std::size_t size = counts[rank == 0 ? 0 : 1];
            Collective c = in_parts(DDP_COLLECTIVE_REDUCE_SCATTER, data, counts, DDP_AVG);
            std::size_t taken = 0;
            c.take = [&](const void* from, std::size_t offset, std::size_t bytes) {
                const std::size_t first = offset / sizeof(float), count = bytes / sizeof(float);
                ASSERT_EQ(first, taken);
                ASSERT_EQ(bytes, std::min(std::size_t{DDP_BACKEND_BLOCK_BYTES},
                                          (size - first) * sizeof(float)));
                ASSERT_EQ(from, data.data() + begin + first);
                for (std::size_t i = begin + first; i < begin + first + count; ++i) {
                    ASSERT_EQ(data[i], static_cast<float>(i + 1));
                    data[i] = -1;
                }
                taken += count;
            };
            link.run(c, {});
            EXPECT_EQ(taken, size);
            for (std::size_t i = begin; i < begin + size; ++i) ASSERT_EQ(data[i], -1) << i;
        });
}

// Their sums are equal.
TEST_P(PartsOfALink, ThatRanksSeeDifferentlyAreAnErrorOfBoth) {
    for (const std::size_t size : {100, 100'000})
        for (const ddp_collective_kind kind :
             {DDP_COLLECTIVE_REDUCE_SCATTER, DDP_COLLECTIVE_ALLGATHER})
            on_two(GetParam(), [&](std::int32_t rank, Link& link) {
                std::vector<float> data(size, 1);
                const std::uint64_t first = size / 2 + static_cast<std::size_t>(rank);
                try {
                    link.run(in_parts(kind, data, {first, size - first}), {});
                    FAIL() << "the parts differ";
                } catch (const Error& error) {
                    EXPECT_EQ(error.info().code, DDP_ERROR_MISMATCH);
                    EXPECT_GE(error.info().rank, 0);
                    EXPECT_THAT(error.info().message,
                                HasSubstr("the ranks divide the message differently"));
                }
                EXPECT_EQ(data, std::vector<float>(size, 1)) << "nothing has moved";
            });
}

Collective all_to_all(const std::vector<float>& send, std::vector<float>& recv, std::size_t count) {
    return {.kind = DDP_COLLECTIVE_ALL_TO_ALL,
            .send = send.data(),
            .recv = recv.data(),
            .count = count,
            .dtype = DDP_F32};
}

// Each rank has twos of its own number for rank 0, then threes for rank 1.
TEST_P(PartsOfALink, GoToEachRank) {
    for (const std::size_t most : {1, 3, 70'001})
        on_two(GetParam(), [&](std::int32_t rank, Link& link) {
            const auto other = static_cast<float>(10 * (1 - rank)), own = 10.0f * rank;
            std::vector<float> send(most, own + 2), recv(2 * most);
            send.resize(2 * most, own + 3);
            link.run(all_to_all(send, recv, most), {});
            std::vector<float> want(2 * most, other + 2 + rank);
            std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(rank == 0 ? 0 : most), most,
                        own + 2 + rank);
            EXPECT_EQ(recv, want);
            // Rank 0 keeps nothing and sends `most` to rank 1, which sends 1 back and keeps 2.
            Collective c = all_to_all(send, recv, 0);
            c.send_counts =
                std::make_shared<const Counts>(rank == 0 ? Counts{0, most} : Counts{1, 2});
            c.recv_counts =
                std::make_shared<const Counts>(rank == 0 ? Counts{0, 1} : Counts{most, 2});
            send.assign(std::max<std::size_t>(most, 3), own + 5);
            recv.assign(most + 3, -1);
            c.send = send.data();
            c.recv = recv.data();
            link.submit(c, {})->wait(std::nullopt);
            want.assign(rank == 0 ? 1 : most, other + 5);
            if (rank == 1) want.insert(want.end(), 2, own + 5);
            want.resize(recv.size(), -1);
            EXPECT_EQ(recv, want);
        });
}

TEST_P(PartsOfALink, GoToEachRankOnlyIfAllDoTheSame) {
    on_two(GetParam(), [&](std::int32_t rank, Link& link) {
        std::vector<float> send(20, 1), recv(20);
        Collective c = all_to_all(send, recv, 10);
        if (rank == 1) c.kind = DDP_COLLECTIVE_ALLGATHER;
        try {
            link.run(c, {});
            FAIL() << "the collectives differ";
        } catch (const Error& error) {
            EXPECT_EQ(error.info().code, DDP_ERROR_MISMATCH);
            EXPECT_THAT(error.info().message, HasSubstr("rank 0 is at all_to_all of 10 f32"));
        }
        EXPECT_EQ(recv, std::vector<float>(20)) << "nothing has moved";
    });
}

// On devices whose backend takes memory of the host only: chunk after chunk of every part.
TEST_P(PartsOfALink, OfADeviceGoThroughTheHost) {
    setenv("DDP_MODULE_PATH", DDP_FAKE_DEVICE_FOLDER, 1);
    const std::vector<Counts> all_counts{{700'000, 100'001}, {0, 300'000}, {5, 3}, {1'000, 0}};
    for (const Counts& counts : all_counts)
        on_two(GetParam(), [&](std::int32_t rank, Link& link) {
            const ddp_device device{DDP_DEVICE_CUDA, rank};
            const std::size_t own = counts[static_cast<std::size_t>(rank)];
            const std::size_t begin = rank == 0 ? 0 : counts[0], size = counts[0] + counts[1];
            auto* const memory = static_cast<float*>(fake::allocate(rank, size * sizeof(float)));
            const auto value = [](std::size_t i) { return static_cast<float>(i % 1009); };
            for (std::size_t i = 0; i < size; ++i)
                fake::at<float>(memory)[i] = value(i) * static_cast<float>(rank + 1);
            const StreamPtr stream = on_device::make_stream(device);
            Collective c{.kind = DDP_COLLECTIVE_REDUCE_SCATTER,
                         .recv = memory,
                         .count = size,
                         .dtype = DDP_F32,
                         .op = DDP_AVG,
                         .device = device,
                         .counts = std::make_shared<const Counts>(counts)};
            link.run(c, OpTag{}.on(stream));
            EXPECT_TRUE(fake::settle());
            for (std::size_t i = begin; i < begin + own; ++i)
                ASSERT_EQ(fake::at<float>(memory)[i], 1.5f * value(i)) << i;
            c.kind = DDP_COLLECTIVE_ALLGATHER;
            c.op = DDP_SUM;
            link.run(c, OpTag{}.on(stream));
            EXPECT_TRUE(fake::settle());
            for (std::size_t i = 0; i < size; ++i)
                ASSERT_EQ(fake::at<float>(memory)[i], 1.5f * value(i)) << i;
            fake::release(memory);
        });
}

INSTANTIATE_TEST_SUITE_P(Backends, PartsOfALink, testing::Values("tcp", "shm", "shm-plain"),
                         [](const auto& instance) {
                             std::string name = instance.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
