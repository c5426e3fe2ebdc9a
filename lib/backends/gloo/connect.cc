#include "backends/gloo/connect.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "backends/common/keys.h"
#include "util/error.h"
#include "util/quiet_thread.h"

namespace libddp::gloo_tcp {
namespace {

using std::chrono::milliseconds;

// Gloo's view of the group's store. Every wait ends at the deadline, whatever timeout Gloo passes
// or does not pass.
class StoreAdapter final : public ::gloo::rendezvous::Store {
public:
    StoreAdapter(const ddp_backend_host& host, const Deadline& deadline, int number)
        : keys_(host, str("gloo/", number, "/pairs/")), deadline_(deadline) {}

    void set(const std::string& key, const std::vector<char>& data) override {
        keys_.set(without_grouping(key), std::string(data.begin(), data.end()));
    }

    std::vector<char> get(const std::string& given) override {
        const std::string key = without_grouping(given);
        last_key_ = key;
        // A store that still has the key answers at once, also when time is up: then no further
        // connection may be tried.
        if (deadline_.expired()) fail(DDP_ERROR_TIMEOUT, "time ran out");
        const std::string value = keys_.get(key, deadline_);
        return {value.begin(), value.end()};
    }

    void wait(const std::vector<std::string>& keys) override {
        for (const std::string& key : keys) get(key);
    }

    void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

    // The rank Gloo was about to connect with; -1 if that cannot be told from the keys of this
    // version: "3", "rank_3".
    int current_peer() const {
        const auto begin = last_key_.starts_with("rank_") ? 5U : 0U;
        const std::string rank = last_key_.substr(begin);
        const bool number =
            !rank.empty() && rank.size() < 9 && std::all_of(rank.begin(), rank.end(), ::isdigit);
        return number ? std::stoi(rank) : -1;
    }

private:
    // Gloo writes ranks in the locale of the host program, which may group digits.
    static std::string without_grouping(std::string key) {
        std::erase_if(key,
                      [](unsigned char letter) { return !std::isalnum(letter) && letter != '_'; });
        return key;
    }

    const backend::Keys keys_;
    const Deadline& deadline_;
    std::string last_key_;
};

// Newer versions of Gloo take the store by shared_ptr.
template <class Context>
void connect_full_mesh(Context& context, const std::shared_ptr<StoreAdapter>& store,
                       std::shared_ptr<::gloo::transport::Device>& device) {
    if constexpr (requires(std::shared_ptr<::gloo::rendezvous::Store> shared) {
                      context.connectFullMesh(shared, device);
                  })
        context.connectFullMesh(store, device);
    else
        context.connectFullMesh(*store, device);
}

// Where the ranks say which address they listen on.
backend::Keys listening(const ddp_backend_host& host, int number) {
    return backend::Keys(host, str("gloo/", number, "/listening/"));
}

// Gloo says what the system refused this process only in words.
bool lacks_resources(const std::string& reason) {
    for (int error : {EMFILE, ENFILE, ENOMEM, ENOBUFS})
        if (reason.ends_with(std::generic_category().message(error))) return true;
    return false;
}

std::string peer_description(const ddp_backend_host& host, int peer, int number) {
    if (peer < 0) return "another rank";
    try {
        return str("rank ", peer, " (",
                   listening(host, number).get(std::to_string(peer), Deadline::after_ms(100)), ")");
    } catch (const Error&) {
        return str("rank ", peer);
    }
}

}  // namespace

std::shared_ptr<::gloo::transport::Device> create_device(const std::string& address) {
    const ::gloo::transport::tcp::attr attributes(address.c_str());
    const SignalsBlocked guard;  // for the thread that the device starts
    try {
        return ::gloo::transport::tcp::CreateDevice(attributes);
    } catch (const std::system_error& error) {
        no_thread("Gloo", error);
    } catch (const std::exception& error) {
        fail(DDP_ERROR_IO, "cannot listen on ", address, ": ", error.what());
    }
}

std::shared_ptr<::gloo::Context> connect_all(const ddp_backend_host& host,
                                             std::shared_ptr<::gloo::transport::Device> device,
                                             const Deadline& deadline, int number) {
    listening(host, number).set(std::to_string(host.rank), device->str());
    auto context = std::make_shared<::gloo::rendezvous::Context>(host.rank, host.world_size);
    // All ranks have arrived (choose_address), so a connection takes milliseconds. Gloo allows each
    // one 5 times the context's timeout, and asks the store before each: no new one after half of
    // the time, and half for the last, makes the whole bounded.
    const std::int64_t left = std::max<std::int64_t>(2, deadline.remaining_ms());
    const Deadline last_start = Deadline::after_ms(left / 2);
    context->setTimeout(milliseconds(std::max<std::int64_t>(1, left / 10)));
    const auto store = std::make_shared<StoreAdapter>(host, last_start, number);
    std::string reason;
    try {
        connect_full_mesh(*context, store, device);
        return context;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        reason = error.what();
    } catch (const std::exception& error) {
        reason = error.what();
    }
    if (lacks_resources(reason))
        fail(DDP_ERROR_LIMIT, "Gloo cannot connect: ", reason,
             "; raise the limit of open files (ulimit -n) or of memory");
    const int peer = store->current_peer();
    throw Error(ErrorInfo{
        DDP_ERROR_UNAVAILABLE,
        str("rank ", host.rank, ", listening on ", device->str(), ", could not connect with ",
            peer_description(host, peer, number), ": ", reason,
            "; choose another network with the option iface=NAME or host=ADDRESS, or the variable "
            "DDP_IFACE"),
        peer});
}

}  // namespace libddp::gloo_tcp
