// Serves the metrics of the job over HTTP, to anybody who reaches the address, from a thread of its
// own. It reads the records and touches nothing else: neither the ranks nor ddprun's loop wait for
// a client.
#pragma once

#include <memory>
#include <string>

#include "metrics.h"
#include "rendezvous.h"

namespace ddprun {

class Exporter {
public:
    // Takes the address, of which port 0 is a free one. Throws std::runtime_error if that is not
    // possible.
    explicit Exporter(const Endpoint& address);
    ~Exporter();
    Exporter(const Exporter&) = delete;
    Exporter& operator=(const Exporter&) = delete;

    // "http://127.0.0.1:9400/metrics".
    std::string url() const;
    // folder: of the records of this generation. The first call starts the thread.
    void follow(const JobNow& job, const std::string& folder);

private:
    class Server;

    Endpoint address_;
    std::unique_ptr<Server> server_;
};

}  // namespace ddprun
