// HTTP with libcurl, which is opened when the first client is made: libddp runs without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "util/deadline.h"

namespace libddp {

// One connection at a time. One thread calls post and stream; any may call end and cut.
class HttpClient {
public:
    // Files in PEM; an empty name: the system's authorities, no certificate of this side's.
    struct Tls {
        std::string cacert, cert, key;
    };
    struct Answer {
        long status = 0;
        std::string body;
    };

    // Throws Error (UNSUPPORTED): libddp was built without libcurl, or it is not installed.
    explicit HttpClient(Tls tls);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    // These throw Error: UNAVAILABLE (no connection, or it broke), TIMEOUT, PERMISSION_DENIED
    // (certificates), LIMIT (the answer is too long), INTERRUPTED, ABORTED (after end).
    // authorization: "" or the header's value.
    Answer post(const std::string& url, const std::string& authorization, std::string_view body,
                const Deadline& deadline);
    // Gives what comes to `more` until the server ends the answer, `cut` is called or `more`
    // throws. Returns what came with another status than 200.
    Answer stream(const std::string& url, const std::string& authorization, std::string_view body,
                  const std::function<void(std::string_view)>& more);

    // The call that is under way and all later ones throw ABORTED.
    void end();
    // A stream that is under way throws UNAVAILABLE.
    void cut();
    // Sleeps, at most until the deadline. Throws as post.
    void pause(std::int64_t ms, const Deadline& deadline);

private:
    struct Handles;
    struct Call;
    void perform(Call& call, const std::string& url, const std::string& authorization,
                 const Deadline& deadline);
    void check() const;

    const Tls tls_;
    std::unique_ptr<Handles> handles_;
    std::atomic<bool> ended_{false};
    std::atomic<bool> cut_{false};
};

}  // namespace libddp
