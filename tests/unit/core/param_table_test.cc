// Registration: what is refused, and how the message names it.
#include "core/param_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "util/error.h"

using namespace libddp;
using testing::HasSubstr;

namespace {

Param param(const std::string& name, std::vector<std::int64_t> shape = {2, 3}) {
    Param p;
    p.name = name;
    p.shape = std::move(shape);
    return p;
}

template <class F>
ErrorInfo error_of(F&& body) {
    try {
        body();
    } catch (const Error& e) {
        return e.info();
    }
    return {};
}

TEST(ParamTable, CountsElementsAndBytes) {
    ParamTable table;
    EXPECT_EQ(table.add_param(param("w")), 0);
    EXPECT_EQ(table.add_param(param("scalar", {})), 1);
    EXPECT_EQ(table.add_param(param("empty", {0, 5})), 2);
    EXPECT_EQ(table.params()[0].bytes, 24u);
    EXPECT_EQ(table.params()[1].count, 1);
    EXPECT_EQ(table.params()[2].count, 0);
    EXPECT_EQ(table.find("scalar"), 1);
    EXPECT_EQ(table.find("nothing"), -1);
}

TEST(ParamTable, RefusesAndNames) {
    ParamTable table;
    table.add_param(param("w"));
    struct Case {
        std::function<void()> act;
        ddp_status code;
        const char* text;
    };
    float gradient[6], other[6];
    auto with = [&](auto change) {
        Param p = param("x");
        change(p);
        return [&table, p] { table.add_param(p); };
    };
    const Case cases[] = {
        {[&] { table.add_param(param("w")); }, DDP_ERROR_ALREADY_EXISTS, "'w'"},
        {[&] { table.add_param(param("")); }, DDP_ERROR_INVALID_ARGUMENT, "name is empty"},
        {[&] { table.add_param(param(std::string(2000, 'a'))); }, DDP_ERROR_INVALID_ARGUMENT,
         "2000 bytes"},
        {with([](Param& p) { p.dtype = 99; }), DDP_ERROR_INVALID_ARGUMENT, "dtype 99"},
        {with([](Param& p) { p.dtype = 0; }), DDP_ERROR_INVALID_ARGUMENT, "dtype 0"},
        {with([](Param& p) {
             p.shape = {2, -1};
         }),
         DDP_ERROR_INVALID_ARGUMENT, "shape[1] is -1"},
        {with([](Param& p) {
             p.shape = {1 << 30, 1 << 30, 1 << 30};
         }),
         DDP_ERROR_INVALID_ARGUMENT, "too large"},
        {with([](Param& p) { p.shape.assign(17, 1); }), DDP_ERROR_INVALID_ARGUMENT, "ndim is 17"},
        {with([](Param& p) { p.device.kind = DDP_DEVICE_CUDA; }), DDP_ERROR_UNSUPPORTED,
         "libddp-cuda.so"},
        {with([&](Param& p) { p.grad = reinterpret_cast<char*>(gradient) + 1; }),
         DDP_ERROR_INVALID_ARGUMENT, "not aligned"},
        {[&] {
             Param b = param("b");
             b.grad = other;
             table.add_buffer(b);
         },
         DDP_ERROR_INVALID_ARGUMENT, "grad must be NULL"},
        {[&] { table.add_buffer(param("b")); }, DDP_ERROR_INVALID_ARGUMENT, "data is NULL"},
    };
    for (const auto& c : cases) {
        auto info = error_of(c.act);
        EXPECT_EQ(info.code, c.code) << info.message;
        EXPECT_THAT(info.message, HasSubstr(c.text));
    }
    EXPECT_EQ(table.size(), 1);
}

TEST(ParamTable, GradientsMayNotOverlap) {
    ParamTable table;
    float memory[12] = {};
    auto at = [&](const char* name, int offset) {
        Param p = param(name);
        p.grad = memory + offset;
        return p;
    };
    table.add_param(at("a", 0));
    auto info = error_of([&] { table.add_param(at("b", 3)); });
    EXPECT_EQ(info.code, DDP_ERROR_ALREADY_EXISTS);
    EXPECT_THAT(info.message, HasSubstr("'b'"));
    EXPECT_THAT(info.message, HasSubstr("'a'"));
    EXPECT_EQ(error_of([&] { table.add_param(at("c", 6)); }).code, DDP_OK);
}

// Slices of one tensor whose dtype is given wrong: the message shows both, so that the mistake is
// seen.
TEST(ParamTable, AnOverlapShowsBothRanges) {
    alignas(8) float memory[12];
    ParamTable table;
    for (int i = 0; i < 2; ++i) {
        Param p = param("layer." + std::to_string(i));
        p.grad = memory + 6 * i;
        p.dtype = p.gradient.dtype = DDP_F64;  // they are f32
        if (i == 0) {
            table.add_param(p);
            continue;
        }
        const ErrorInfo error = error_of([&] { table.add_param(p); });
        EXPECT_EQ(error.code, DDP_ERROR_ALREADY_EXISTS);
        for (const char* words :
             {"'layer.1' has f64[2,3], 6 elements, 48 bytes at 0x",
              "'layer.0' has f64[2,3], 6 elements, 48 bytes at 0x", "share 24 bytes", "dtype"})
            EXPECT_THAT(error.message, HasSubstr(words));
        p.dtype = p.gradient.dtype = DDP_F32;
        EXPECT_EQ(error_of([&] { table.add_param(p); }).code, DDP_ERROR_ALREADY_EXISTS)
            << "the first is still too long";
    }
}

TEST(ParamTable, SlicesOfOneTensorMayBeRegistered) {
    float memory[12];
    ParamTable table;
    for (int i = 0; i < 2; ++i) {
        Param p = param("slice " + std::to_string(i));
        p.grad = memory + 6 * i;
        EXPECT_EQ(table.add_param(p), i);
    }
}

}  // namespace
