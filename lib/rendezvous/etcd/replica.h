// The view of a participant of a store on etcd: a StoreState of its own from the batches there,
// which is the same for all at the same revision. No network, no clock, no threads.
//
// Keys, below /ddp/<name>//:
//     w/alive/<owner>                   a participant; bound to its lease, so that etcd deletes it when that expires
//     w/log/<owner>/<batch>/<piece>     what it asks for, in the order of etcd's revisions
//     w/log/<owner>/bury                the participant is gone: a goodbye on its behalf
//     w/head                            the newest snapshot
//     s/<snapshot>/<piece>              its pieces
//     fence                             Store::raise_fence. It stays when all else goes
//     last                              written with each batch: its revision is the newest batch's
// Numbers are hexadecimal, with all digits, so that etcd sorts them. A batch is a sequence of the
// store's frames (protocol.h), cut into pieces because etcd refuses long values. All watch w/.
//
// A participant writes one batch at a time, each only while its own key below alive/ exists. So a
// batch that is written twice, because an answer got lost, is known by its number, and nothing of a
// participant's comes after its burial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol.h"
#include "rendezvous/store_state.h"

namespace libddp {

inline constexpr std::size_t kEtcdPiece = std::size_t{1} << 20;

struct EtcdSnapshotHead {
    std::uint64_t id = 0;
    std::uint64_t pieces = 0;
    std::int64_t revision = 0;  // what the snapshot stands for

    std::string encode() const;
    static EtcdSnapshotHead decode(std::string_view bytes);  // throws Error (IO)
};

class EtcdReplica {
public:
    // Gets what each request has come to; nullopt: nothing, as no participant writes it.
    using Applied = std::function<void(Caller, std::optional<Outcome>)>;

    // One of the keys below w/, in the order of revisions. key: what follows w/. Unknown ones are
    // ignored. Throws Error (IO) on a batch that is none.
    void put(std::string_view key, std::string_view value, std::int64_t revision,
             const Applied& applied = nullptr);
    void removed(std::string_view key);
    // All others have been removed.
    void only_alive(const std::vector<std::string>& keys);

    StoreState& state() { return state_; }
    const StoreState& state() const { return state_; }
    bool is_alive(std::uint64_t owner) const;
    std::uint64_t lowest_alive() const;  // 0: none
    // The participants that are gone and have left something behind.
    std::vector<std::uint64_t> to_bury() const;

    // Whether a snapshot would be worth it, and is possible now.
    bool wants_snapshot() const;
    std::string snapshot() const;
    // Before the first put. Throws Error (IO).
    void load(std::string_view snapshot, const EtcdSnapshotHead& head);
    const EtcdSnapshotHead& head() const { return head_; }

    // The batches that a snapshot made now replaces: of each owner the number of its last one, and
    // whether it is buried.
    struct Logged {
        std::uint64_t owner = 0;
        std::uint64_t last_batch = 0;
        bool buried = false;
    };
    std::vector<Logged> logged() const;

    static std::string alive_key(std::uint64_t owner);
    static std::string log_key(std::uint64_t owner, std::uint64_t batch, std::uint64_t piece);
    static std::string bury_key(std::uint64_t owner);
    static std::string snapshot_key(std::uint64_t id, std::uint64_t piece);
    // The value of a piece.
    static std::string piece(std::string_view bytes, bool is_last);

private:
    struct Owner {
        bool alive = false;
        bool buried = false;
        std::int64_t newest = 0;   // revision of its newest batch
        std::uint64_t batch = 0;   // the last of which a piece has come
        std::uint64_t pieces = 0;  // of it
        std::string partial;
        bool whole = true;
    };

    void apply(std::uint64_t owner, std::string_view batch, const Applied& applied);

    StoreState state_;
    std::map<std::uint64_t, Owner> owners_;
    EtcdSnapshotHead head_;
    std::size_t records_ = 0;  // since the snapshot
    std::size_t bytes_ = 0;
};

}  // namespace libddp
