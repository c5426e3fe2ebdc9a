// The state of hooks as a file: resuming, and files that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "capi/bad_input.h"
#include "support/model.h"
#include "support/ranks.h"

namespace hook_state_test {

using Json = nlohmann::json;
using File = std::vector<unsigned char>;

const std::vector<std::int64_t> kSizes{3000, 20, 1500};

void step(Model& m, int rank, int number) {
    m.context.step_begin();
    for (int i = m.count() - 1; i >= 0; --i) {
        for (std::size_t k = 0; k < m.size(i); ++k)
            m.grad(i)[k] = std::sin(static_cast<float>(number * 5 + rank * 3 + i + 1) *
                                    static_cast<float>(k + 1));
        m.context.grad_ready(i);
    }
    m.context.finalize();
}

// A file taken apart and put together.
struct Parts {
    Json header;
    File arrays;

    explicit Parts(const File& file) {
        std::uint64_t length = 0;
        std::memcpy(&length, file.data(), sizeof length);
        header =
            Json::parse(file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(length));
        arrays.assign(file.begin() + 8 + static_cast<std::ptrdiff_t>(length), file.end());
    }
    File file() const {
        const std::string text = header.dump();
        const std::uint64_t length = text.size();
        File result(8 + text.size());
        std::memcpy(result.data(), &length, sizeof length);
        std::memcpy(result.data() + 8, text.data(), text.size());
        result.insert(result.end(), arrays.begin(), arrays.end());
        return result;
    }
    Json& metadata() { return header["__metadata__"]; }
};

class HookStateTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Hooks, HookStateTest,
                         testing::Values("onebit", "topk", "fp16(topk)", "quantize_per_tensor",
                                         "allreduce"));

// Other buckets in the context that goes on, which must not matter.
TEST_P(HookStateTest, ResumingEqualsNeverHavingStopped) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model through(group, kSizes, true);
        through.context.use_hook(GetParam());
        through.context.commit();
        for (int s = 0; s < 4; ++s) step(through, rank, s);
        const File file = through.context.save_hook_state();
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 64;
        Model resumed(group, kSizes, false, options);
        resumed.context.use_hook(GetParam());
        resumed.context.commit();
        resumed.context.load_hook_state(file);
        for (int s = 4; s < 8; ++s) {
            step(through, rank, s);
            step(resumed, rank, s);
            EXPECT_EQ(through.gradients(), resumed.gradients()) << "step " << s;
        }
        EXPECT_EQ(through.context.save_hook_state(), resumed.context.save_hook_state());
    });
}

TEST_P(HookStateTest, IsASafetensorsFile) {
    on_ranks({1}, [](int rank, ddp_group* group) {
        Model m(group, kSizes, true);
        m.context.use_hook(GetParam());
        m.context.commit();
        step(m, rank, 0);
        Parts parts(m.context.save_hook_state());
        for (const auto& [key, value] : parts.metadata().items())
            EXPECT_TRUE(value.is_string()) << key;
        std::size_t end = 0;
        for (const auto& [name, entry] : parts.header.items()) {
            if (name == "__metadata__") continue;
            EXPECT_TRUE(entry["dtype"].is_string());
            std::size_t bytes = entry["dtype"] == "F64" ? 8 : 4;
            for (std::size_t extent : entry["shape"]) bytes *= extent;
            EXPECT_EQ(entry["data_offsets"][1].get<std::size_t>() -
                          entry["data_offsets"][0].get<std::size_t>(),
                      bytes);
            end = std::max(end, entry["data_offsets"][1].get<std::size_t>());
        }
        EXPECT_EQ(end, parts.arrays.size());
    });
}

// The error for a file that does not fit.
struct Misfit {
    const char* what;
    std::function<File(const File&)> make;
    std::vector<std::string> words;
};

File changed(const File& file, const std::function<void(Parts&)>& change) {
    Parts parts(file);
    change(parts);
    return parts.file();
}

const std::vector<Misfit>& misfits() {
    static const std::vector<Misfit> all{
        {"empty", [](const File&) { return File(1); }, {"cut short", "1 bytes"}},
        {"no state", [](const File&) { return File(100, 'x'); }, {"cut short, or is none"}},
        {"cut in the header",
         [](const File& f) { return File(f.begin(), f.begin() + 50); },
         {"cut short"}},
        {"cut in the arrays",
         [](const File& f) { return File(f.begin(), f.end() - 4); },
         {"cut short", "bytes of arrays"}},
        {"longer",
         [](const File& f) {
             File g = f;
             g.push_back(0);
             return g;
         },
         {"bytes of arrays"}},
        {"a bit",
         [](const File& f) {
             File g = f;
             g.back() ^= 1;
             return g;
         },
         {"damaged", "checksum"}},
        {"no JSON",
         [](const File& f) {
             File g = f;
             g[9] = '\'';
             return g;
         },
         {"not the state of a hook"}},
        {"list",
         [](const File& f) { return changed(f, [](Parts& p) { p.header = Json::array({1}); }); },
         {"not the state"}},
        {"deep",
         [](const File& f) {
             return changed(f, [](Parts& p) {
                 Json deep = 1;
                 for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
                 p.header["deep"] = std::move(deep);
             });
         },
         {"damaged"}},
        {"other safetensors",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata().erase("format"); }); },
         {"format"}},
        {"version",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["version"] = "2"; }); },
         {"version 2", "version 1"}},
        {"hook",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.metadata()["hook"] = "powersgd"; });
         },
         {"'powersgd'", "'topk' is installed"}},
        {"world",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["world"] = "4"; }); },
         {"a world of 4", "has 1", "SHARED_ONLY"}},
        {"rank",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["rank"] = "3"; }); },
         {"of rank 3", "rank 0"}},
        {"numbers",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["numbers"] = "[1"; }); },
         {"damaged"}},
        {"number",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.metadata()["numbers"] = R"({"a":"b"})"; });
         },
         {"damaged"}},
        {"no text",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["world"] = 1; }); },
         {"damaged"}},
        {"shape",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"]["shape"] = {1000, 2}; });
         },
         {"damaged"}},
        {"negative shape",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"]["shape"] = {-3000}; });
         },
         {"damaged"}},
        {"offsets",
         [](const File& f) {
             return changed(f, [](Parts& p) {
                 p.header["error:p0"]["data_offsets"] = {0, 1u << 30};
             });
         },
         {"damaged"}},
        {"dtype",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"]["dtype"] = "F8"; });
         },
         {"damaged"}},
        {"no dtype",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"].erase("dtype"); });
         },
         {"damaged"}},
        {"fewer elements",
         [](const File& f) {
             return changed(f, [](Parts& p) {
                 p.header["error:p0"]["shape"] = {2000};
                 p.header["error:p0"]["data_offsets"] = {0, 8000};
             });
         },
         {"damaged", "size of an array"}},
        {"a shape of fractions",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"]["shape"] = {1e30}; });
         },
         {"damaged", "shape"}},
        {"a shape that is no list",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:p0"]["shape"] = "3000"; });
         },
         {"damaged", "shape"}},
        {"offsets of fractions",
         [](const File& f) {
             return changed(f, [](Parts& p) {
                 p.header["error:p0"]["data_offsets"] = {0.0, 12000.0};
             });
         },
         {"damaged", "data_offsets"}},
        {"offsets below zero",
         [](const File& f) {
             return changed(f, [](Parts& p) {
                 p.header["error:p0"]["data_offsets"] = {-1, 12000};
             });
         },
         {"damaged", "data_offsets"}},
        {"a format that is a number",
         [](const File& f) { return changed(f, [](Parts& p) { p.metadata()["format"] = 7; }); },
         {"not the state of a hook"}},
        {"stranger",
         [](const File& f) {
             return changed(f, [](Parts& p) { p.header["error:q"] = p.header["error:p0"]; });
         },
         {"damaged"}},
    };
    return all;
}

TEST(HookStateFiles, ThatDoNotFitAreRefusedAndChangeNothing) {
    on_ranks({1}, [](int rank, ddp_group* group) {
        Model m(group, kSizes, true);
        m.context.use_hook("topk");
        m.context.commit();
        step(m, rank, 0);
        const File good = m.context.save_hook_state();
        step(m, rank, 1);
        const File now = m.context.save_hook_state();
        ASSERT_NE(good, now);
        for (const auto& misfit : misfits()) {
            SCOPED_TRACE(misfit.what);
            const File file = misfit.make(good);
            expect_refused(
                {{misfit.what, kInvalid, misfit.words,
                  calling(ddp_hook_state_load, m.context.get(), file.data(), file.size(), 0)}});
            EXPECT_EQ(m.context.save_hook_state(), now);
        }
        // Any cut and any byte: an error or, where it does not matter, none. Never a crash.
        for (std::size_t i = 0; i < good.size(); i += 1 + i / 16) {
            File file(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(i));
            EXPECT_NE(ddp_hook_state_load(m.context.get(), file.data(), file.size(), 0, nullptr),
                      DDP_OK)
                << i;
            file = good;
            file[i] ^= 0x15;
            ddp_hook_state_load(m.context.get(), file.data(), file.size(), 0, nullptr);
        }
        m.context.load_hook_state(good);
        EXPECT_EQ(m.context.save_hook_state(), good);
    });
}

// A model with other shapes, types or names.
TEST(HookStateFiles, OfAnotherModelNameTheParameter) {
    on_ranks({1}, [](int rank, ddp_group* group) {
        Model m(group, kSizes, true);
        m.context.use_hook("onebit");
        m.context.commit();
        step(m, rank, 0);
        const File file = m.context.save_hook_state();
        const auto load = [&](const std::vector<std::int64_t>& sizes,
                              const std::vector<std::string>& words) {
            Model other(group, sizes, true);
            other.context.use_hook("onebit");
            other.context.commit();
            expect_refused(
                {{"load", kInvalid, words,
                  calling(ddp_hook_state_load, other.context.get(), file.data(), file.size(), 0)}});
        };
        load({3000, 20, 1499}, {"'p2' is f32[1500]", "here it is f32[1499]"});
        load({3000, 20}, {"a parameter 'p2', which this one does not have"});
    });
}

// Another world takes what all ranks share; what a rank had kept of its own gradients starts at
// zero.
TEST(HookStateFiles, OfAnotherWorldGiveWhatIsShared) {
    File file;
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, true);
        m.context.use_hook("topk");
        m.context.commit();
        for (int s = 0; s < 3; ++s) step(m, rank, s);
        if (rank == 1) file = m.context.save_hook_state();
    });
    on_ranks({3}, [&](int rank, ddp_group* group) {
        Model fresh(group, kSizes, true), loaded(group, kSizes, true);
        for (Model* m : {&fresh, &loaded}) {
            m->context.use_hook("topk");
            m->context.commit();
        }
        EXPECT_EQ(ddp_hook_state_load(loaded.context.get(), file.data(), file.size(), 0, nullptr),
                  DDP_ERROR_INVALID_ARGUMENT);
        loaded.context.load_hook_state(file, DDP_HOOK_STATE_SHARED_ONLY);
        step(fresh, rank, 0);
        step(loaded, rank, 0);
        EXPECT_EQ(fresh.gradients(), loaded.gradients());
    });
}

}  // namespace hook_state_test
