// Texts that a rank reads and others wrote about a failure or a collective: verdicts in the store,
// and signatures.
#include "comm/verdict.h"

#include <cstring>

#include "comm/signature.h"
#include "fuzz/target.h"

namespace fuzz::verdict {
namespace {

using namespace libddp;

void read_verdict(std::string_view text) {
    const ErrorInfo error = decode_verdict(text);
    check(error.code < 0, "a verdict is no error");
    const ErrorInfo again = decode_verdict(encode_verdict(error));
    check(again.code == error.code && again.rank == error.rank && again.param == error.param &&
              again.bucket == error.bucket && again.step == error.step &&
              again.message == error.message,
          "a verdict changes when it is written and read");
}

std::string name_of(std::int32_t context, std::int32_t param) {
    return (context ^ param) % 2 == 0 ? "" : "critic";
}

void read_signatures(Reader& bytes) {
    Signature mine{}, theirs{};
    const std::string_view first = bytes.take(sizeof mine), second = bytes.take(sizeof theirs);
    std::memcpy(&mine, first.data(), first.size());
    std::memcpy(&theirs, second.data(), second.size());
    const std::string_view label = bytes.rest();
    const std::string here = describe_mismatch(mine, 0, theirs, 1, label, name_of);
    check(here == describe_mismatch(theirs, 1, mine, 0, "", name_of) || !label.empty(),
          "two ranks tell a mismatch differently");
    advice_for(theirs);
    check(!describe(WaitTarget{theirs.step, theirs.bucket, theirs.kind}).empty(),
          "a wait has no description");
}

}  // namespace

DDP_FUZZ_TARGET(verdict, input) {
    Reader bytes(input);
    if (bytes.flag())
        read_signatures(bytes);
    else
        read_verdict(bytes.rest());
}

}  // namespace fuzz::verdict
