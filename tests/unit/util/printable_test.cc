// Texts of others: no terminal obeys them, and they stay readable.
#include "util/printable.h"

#include <gtest/gtest.h>

#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

const std::string kOrders = "\x1b[2J\x1b]0;title\x07\r\n\x7f\xc2\x9b";
const std::string kPrinted = "\\x1b[2J\\x1b]0;title\\x07\\x0d\\x0a\\x7f\\xc2\\x9b";

TEST(Printable, ControlCharactersAndWhatIsNotUtf8) {
    EXPECT_EQ(printable(kOrders), kPrinted);
    EXPECT_EQ(printable("größe 𝛼 \\ ' \""), "größe 𝛼 \\ ' \"");
    EXPECT_EQ(printable("\xff\xc0\x80\xed\xa0\x80\xc3"), "\\xff\\xc0\\x80\\xed\\xa0\\x80\\xc3");
    EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
    EXPECT_EQ(printable("a\nb\tc\x1b", "\n\t"), "a\nb\tc\\x1b");
    EXPECT_EQ(printable(""), "");
}

TEST(Printable, IntoABufferThatIsTooSmall) {
    char to[8];
    EXPECT_EQ(std::string(to, printable("abcdef\x1bg", to, sizeof to)), "abcdef");
    EXPECT_EQ(std::string(to, printable("abcdefg\xc3\xb6", to, sizeof to)), "abcdefg");
    EXPECT_EQ(std::string(to, printable("abcdefghi", to, sizeof to)), "abcdefgh");
    EXPECT_EQ(printable("a", to, 0), 0U);
}

TEST(Printable, Quoted) {
    EXPECT_EQ(in_quotes(kOrders), "'" + kPrinted + "'");
    EXPECT_EQ(in_quotes(std::string(1000, 'x')), "'" + std::string(96, 'x') + "...'");
}

// No text begins a line of its own.
TEST(Printable, LinesOfTheLog) {
    ::testing::internal::CaptureStderr();
    log(LogLevel::kError, "a peer says '", kOrders, "libddp[1] error: forged'");
    log(LogLevel::kError, std::string(100'000, 'x'));
    const std::string seen = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(seen.find("] error: a peer says '" + kPrinted + "libddp[1] error: forged'\n"),
              seen.npos)
        << seen;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 2) << seen;
    EXPECT_LT(seen.size(), 10'000U);
}

// An error of the program may have lines, as a traceback has.
TEST(Printable, Errors) {
    ddp_error* const error = make_error({DDP_ERROR_CALLBACK, "one\n\ttwo" + kOrders});
    EXPECT_EQ(error->info.message, "one\n\ttwo\\x1b[2J\\x1b]0;title\\x07\\x0d\n\\x7f\\xc2\\x9b");
    free_error(error);
}

}  // namespace
}  // namespace libddp
