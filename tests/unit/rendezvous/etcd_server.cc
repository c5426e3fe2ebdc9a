#include "etcd_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "rendezvous/etcd/http_client.h"
#include "util/deadline.h"

namespace libddp::testing {
namespace {

constexpr const char* kServer = "/usr/bin/etcd";

// etcd waits for its disk at every write, and a disk that is busy with what was just compiled may
// take seconds for one. So the data is in memory where there is room.
std::unique_ptr<TempPath> data_folder() {
    constexpr std::uintmax_t kEnough = std::uintmax_t{1} << 30;
    const char* memory = "/dev/shm";
    std::error_code error;
    const bool is_there = std::filesystem::space(memory, error).available >= kEnough && !error;
    // Without "ddp" in its name: that is how tests of leaks know what libddp has left.
    if (is_there && access(memory, W_OK) == 0)
        return std::make_unique<TempPath>(str(memory, "/etcd-test-"));
    return std::make_unique<TempPath>();
}

// Ends with the thread that started it, however that ends.
pid_t spawn(const std::vector<std::string>& arguments, int output) {
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    setenv("ETCDCTL_API", "3", 1);
    execvp(argv[0], argv.data());
    _exit(127);
}

std::string after(const std::string& uri, const std::string& mark) {
    return uri.substr(uri.find(mark) + mark.size());
}

}  // namespace

bool has_etcd() {
    static const bool has = [] {
        if (access(kServer, X_OK) != 0) {
            std::printf("%s is not there (etcd-server): the store on etcd is not tested\n",
                        kServer);
            return false;
        }
        const ErrorInfo error = error_of([] { HttpClient({}); });
        if (!error.ok())
            std::printf("the store on etcd is not tested: %s\n", error.message.c_str());
        return error.ok();
    }();
    return has;
}

int run_program(const std::vector<std::string>& arguments, std::string* output) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    const pid_t child = spawn(arguments, ends[1]);
    ::close(ends[1]);
    std::string said;
    for (auto deadline = Deadline::after_ms(kLongMs);;) {
        pollfd entry{ends[0], POLLIN, 0};
        if (poll(&entry, 1, static_cast<int>(deadline.remaining_ms())) <= 0) {
            ::kill(child, SIGKILL);
            break;
        }
        char buffer[4096];
        const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
        if (count <= 0) break;
        said.append(buffer, static_cast<std::size_t>(count));
    }
    ::close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (output) *output = said;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

EtcdCluster::EtcdCluster(int members, const Tls& tls)
    : tls_(!tls.key.empty()), authority_(tls.authority) {
    std::string all;
    for (int i = 0; i < members; ++i) {
        members_.push_back(
            {std::make_unique<HeldPort>(), std::make_unique<HeldPort>(), data_folder()});
        all += str(i == 0 ? "" : ",", "m", i, "=http://", after(members_.back().peer->uri(), "//"));
    }
    for (int i = 0; i < members; ++i)
        start(members_[static_cast<std::size_t>(i)], str("m", i), all, tls);
    if (!eventually([&] { return control({"endpoint", "health"}); }))
        throw std::runtime_error("etcd does not start");
}

void EtcdCluster::start(Member& member, const std::string& name, const std::string& all,
                        const Tls& tls) {
    const std::string client =
        str(tls_ ? "https://" : "http://", after(member.client->uri(), "//"));
    const std::string peer = str("http://", after(member.peer->uri(), "//"));
    std::vector<std::string> arguments = {
        kServer, "--name", name, "--data-dir", member.folder->file(), "--listen-client-urls",
        client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", all, "--logger", "zap",
        "--log-outputs", "stderr",
        // A lease can then be as short as a second.
        "--heartbeat-interval", "50", "--election-timeout", "500",
        // Tokens end while a test still needs them.
        "--auth-token-ttl", "1"};
    if (tls_)
        arguments.insert(arguments.end(), {"--cert-file", tls.certificate, "--key-file", tls.key});
    const std::string log = member.folder->file() + ".log";
    const int output = ::open(log.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    member.process = spawn(arguments, output);
    ::close(output);
}

EtcdCluster::~EtcdCluster() {
    for (std::size_t i = 0; i < members_.size(); ++i) kill(static_cast<int>(i));
}

void EtcdCluster::kill(int member) {
    pid_t& process = members_[static_cast<std::size_t>(member)].process;
    if (process <= 0) return;
    ::kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    process = -1;
}

// A thread of it may still answer until the process has stopped.
void EtcdCluster::stop_running(int member) const {
    const pid_t process = members_[static_cast<std::size_t>(member)].process;
    ::kill(process, SIGSTOP);
    waitpid(process, nullptr, WUNTRACED);
}

void EtcdCluster::go_on(int member) const {
    ::kill(members_[static_cast<std::size_t>(member)].process, SIGCONT);
}

std::string EtcdCluster::endpoints() const {
    std::string all;
    for (const auto& member : members_)
        all += str(all.empty() ? "" : ",", after(member.client->uri(), "//"));
    return all;
}

std::string EtcdCluster::uri(int ttl_s) const {
    static std::atomic<int> next{0};
    return str(tls_ ? "etcds://" : "etcd://", endpoints(), "/test/", next++, "?ttl=", ttl_s);
}

int EtcdCluster::leader() const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        std::string said;
        const std::string endpoint = after(members_[i].client->uri(), "//");
        if (members_[i].process > 0 &&
            run_program({"etcdctl", "--endpoints", endpoint, "endpoint", "status", "-w", "fields"},
                        &said) == 0) {
            const auto value = [&](const std::string& name) {
                return said.substr(said.find(name) + name.size(), 22);
            };
            const auto digits = [](const std::string& text) {
                return text.substr(0, text.find('\n'));
            };
            if (digits(value("\"MemberID\" : ")) == digits(value("\"Leader\" : ")))
                return static_cast<int>(i);
        }
    }
    return 0;
}

bool EtcdCluster::control(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {"etcdctl", "--endpoints", endpoints()};
    if (tls_) all.insert(all.end(), {"--cacert", authority_});
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_program(all) == 0;
}

}  // namespace libddp::testing
