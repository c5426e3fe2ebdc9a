// Output of a rank, as ddprun cuts it into lines. The first byte says in which pieces it comes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/target.h"
#include "run/output.h"

namespace fuzz::run_output {
namespace {

using namespace ddprun;

// Lines begin with the tag; without tags the bytes are the rank's own.
void compare(std::string_view printed, std::string_view input, bool tags) {
    if (!tags) return check(printed == input, "output changes on its way");
    std::string text(input);
    if (!text.empty() && text.back() != '\n') text += '\n';
    std::string expected;
    for (Reader lines(text); !lines.empty();)
        expected += "[3] " + std::string(lines.until('\n')) + "\n";
    check(printed == expected, "lines change on their way");
}

}  // namespace

DDP_FUZZ_TARGET(run_output, input) {
    static const int file = memfd_create("output", MFD_CLOEXEC);
    static uv_loop_t loop;
    static const bool ready = uv_loop_init(&loop) == 0;
    check(ready && ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0,
          "there is no file or loop");
    Reader bytes(input);
    const std::uint8_t how = bytes.byte();
    const std::string_view printed = Reader(bytes).rest();
    const OutputStyle style{(how & 1) != 0, false};
    {
        Output output(&loop, style);
        Sink sink(&loop, file);
        LineStream stream(output, sink, 3, nullptr);
        while (!bytes.empty()) stream.feed(bytes.take(1 + how / 2));
        stream.finish();
        sink.flush();
        check(sink.empty(), "a file does not take the output");
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    std::string text(static_cast<std::size_t>(lseek(file, 0, SEEK_CUR)), '\0');
    check(pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
          "the file cannot be read");
    compare(text, printed, style.tags);
}

}  // namespace fuzz::run_output
