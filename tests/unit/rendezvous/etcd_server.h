// Real etcd servers for tests: processes of this one, with ports and folders of their own.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "support.h"

namespace libddp::testing {

// Whether Debian's etcd-server is here, and libddp knows etcd. If not, says so once.
bool has_etcd();

class EtcdCluster {
public:
    struct Tls {
        std::string authority, certificate, key;  // files
    };
    explicit EtcdCluster(int members, const Tls& tls = {});
    ~EtcdCluster();  // kills
    EtcdCluster(const EtcdCluster&) = delete;

    // "127.0.0.1:2379,127.0.0.1:3379"
    std::string endpoints() const;
    // "etcd://<endpoints>/<a new name>?ttl=<ttl_s>"
    std::string uri(int ttl_s = 2) const;
    void kill(int member);
    void stop_running(int member) const;  // SIGSTOP
    void go_on(int member) const;
    int leader() const;
    // etcdctl with these arguments succeeds.
    bool control(const std::vector<std::string>& arguments) const;

private:
    struct Member {
        std::unique_ptr<HeldPort> client, peer;
        std::unique_ptr<TempPath> folder;
        pid_t process = -1;
    };
    void start(Member& member, const std::string& name, const std::string& all, const Tls& tls);

    std::vector<Member> members_;
    const bool tls_;
    std::string authority_;
};

// Runs a program to its end; its exit status, or -1 after kLongMs. output: what it printed, if
// wanted.
int run_program(const std::vector<std::string>& arguments, std::string* output = nullptr);

}  // namespace libddp::testing
