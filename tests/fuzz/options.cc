// Strings of options: in general, and those of the backends gloo and tcp. The first byte says how
// many ranks there are.
#include "util/options.h"

#include <cmath>
#include <cstring>

#include "backends/gloo/settings.h"
#include "backends/tcp/settings.h"
#include "ddp/group.h"
#include "fuzz/target.h"

namespace fuzz::options {
namespace {

using namespace libddp;

void read_known(std::string_view text) {
    std::int32_t integer = 7;
    double real = 0.5;
    bool flag = false;
    accepts([&] {
        OptionReader reader(text, "options");
        reader.integer("integer", integer, -5, 100);
        reader.real("real", real, -1);
        reader.flag("flag", flag);
        reader.take("text");
        reader.finish();
    });
    check(-5 <= integer && integer <= 100, "a number is beyond its bounds");
    check(std::isfinite(real), "a number is not finite");
}

void read_backends(const std::string& text, std::uint8_t ranks) {
    ddp_backend_host host{};
    host.struct_size = sizeof host;
    host.world_size = 1 + ranks % 20;
    host.flags = ranks >= 128 ? std::uint32_t{DDP_GROUP_DETERMINISTIC} : 0;
    host.options = text.c_str();
    accepts([&] {
        const auto settings = gloo_tcp::read_settings(host);
        check(1 <= settings.lanes && settings.lanes <= 8,
              "gloo takes a number of lanes that it does not have");
        gloo_tcp::capabilities_of(settings.algorithm, host.world_size);
    });
    accepts([&] {
        const auto settings = tcp::read_settings(host);
        check(1 <= settings.lanes && settings.lanes <= 8,
              "tcp takes a number of lanes that it does not have");
        check(!tcp::name_of(settings.protection).empty(), "a protection has no name");
    });
}

}  // namespace

DDP_FUZZ_TARGET(options, input) {
    Reader bytes(input);
    const std::uint8_t ranks = bytes.byte();
    const std::string_view text = bytes.rest();
    accepts([&] {
        std::string written;
        for (const auto& [key, value] : parse_options(text, "options")) {
            check(!key.empty(), "an option has no name");
            written += key + "=" + value + ",";
        }
        parse_options(written, "options");
    });
    read_known(text);
    read_backends(std::string(text), ranks);
}

}  // namespace fuzz::options
