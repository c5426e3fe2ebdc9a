// Requests of anybody who reaches the address of `ddprun --metrics`. Afterwards a scraper gets the
// metrics as before.
#include "run/exporter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "fuzz/target.h"
#include "util/descriptors.h"

namespace fuzz::exporter {
namespace {

// One for all inputs, as a job has.
class Served {
public:
    Served() : exporter_({"127.0.0.1", 0}) {
        std::string folder =
            (std::filesystem::temp_directory_path() / "fuzz-exporter-XXXXXX").string();
        check(mkdtemp(folder.data()) != nullptr, "there is no folder");
        folder_ = folder;
        exporter_.follow({}, folder_);
        const std::string url = exporter_.url();
        const std::size_t colon = url.rfind(':');
        port_ = static_cast<std::uint16_t>(std::strtoul(url.c_str() + colon + 1, nullptr, 10));
    }
    ~Served() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    // The answer to these bytes, after which nothing more comes.
    std::string answer(std::string_view request) const {
        const libddp::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port_);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        check(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0,
              "nobody listens");
        // It may answer and close before it has all.
        while (!request.empty()) {
            const ssize_t sent = send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
            if (sent <= 0) break;
            request.remove_prefix(static_cast<std::size_t>(sent));
        }
        shutdown(socket.get(), SHUT_WR);
        std::string answer;
        char bytes[4096];
        for (ssize_t got; (got = recv(socket.get(), bytes, sizeof bytes, 0)) > 0;)
            answer.append(bytes, static_cast<std::size_t>(got));
        return answer;
    }

private:
    ddprun::Exporter exporter_;
    std::string folder_;
    std::uint16_t port_ = 0;
};

// The first line and the body.
std::string shown(const std::string& answer) {
    const std::size_t body = answer.find("\r\n\r\n");
    return answer.substr(0, answer.find("\r\n")) +
           (body == std::string::npos ? "" : answer.substr(body));
}

}  // namespace

DDP_FUZZ_TARGET(exporter, input) {
    static const Served served;
    static const std::string usual =
        shown(served.answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
    check(usual.starts_with("HTTP/1.1 200"), "there are no metrics");
    const std::string answer = served.answer(input);
    check(answer.empty() || answer.starts_with("HTTP/1."), "an answer is none of HTTP's");
    check(answer.size() < 16'384, "an answer is long");
    check(shown(served.answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")) == usual,
          "the next scraper gets another answer");
}

}  // namespace fuzz::exporter
