// The orders of node 0's ddprun, given the reports of the nodes.
#include "nodes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous.h"

namespace ddprun {
namespace {

using State = Report::State;
using Kind = Order::Kind;
using Reports = std::vector<std::optional<Report>>;

Report make(int generation, State state, int code = 0, bool may_restart = true) {
    return {generation,
            state,
            code,
            may_restart,
            code == 0 ? "" : "node failed with " + std::to_string(code),
            Weight::kNone};
}

Order order(int generation, Kind kind, int code = 0) {
    return {generation, kind, code, true, "", Weight::kNone};
}

TEST(Messages, AreReadAsTheyWereWritten) {
    Report report = make(3, State::kFailed, 137, false);
    report.text = "two\nlines";
    report.weight = Weight::kKill;
    EXPECT_EQ(decode_report(encode_report(report, 9)), report);
    const auto read = decode_order(encode_order(order(2, Kind::kStop, 7), 1));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->generation, 2);
    EXPECT_EQ(read->kind, Kind::kStop);
    EXPECT_EQ(read->code, 7);
}

// Messages of another version of ddprun, or of a stranger who knows the secret.
TEST(Messages, ThatAreMalformedAreNone) {
    EXPECT_TRUE(decode_order("0 2 0 1 5 1\n"));
    EXPECT_TRUE(decode_report("0 4 0 1 5 1\n"));
    for (const char* text : {"", "\n", "0 0 0 1 0", "0 0 0 1 0 1", "0 0 0 2 0 1\n",
                             "-1 0 0 1 0 1\n", "0 -1 0 1 0 1\n", "0 5 0 1 0 1\n", "0 0 0 1 6 1\n",
                             "0 0 0 1 -1 1\n", "9999999999 0 0 1 0 1\n", "0 0 0 1 0 1 \n"}) {
        EXPECT_FALSE(decode_order(text)) << text;
        EXPECT_FALSE(decode_report(text)) << text;
    }
    EXPECT_FALSE(decode_order("0 3 0 1 0 1\n"));
}

TEST(NextOrder, RunsUntilEveryNodeHasSucceeded) {
    EXPECT_EQ(next_order(order(0, Kind::kRun), {make(0, State::kRunning), std::nullopt}, 0).kind,
              Kind::kRun);
    EXPECT_EQ(next_order(order(0, Kind::kRun), {make(0, State::kSucceeded), std::nullopt}, 0).kind,
              Kind::kRun);
    const Reports one_runs = {make(0, State::kSucceeded), make(0, State::kRunning)};
    EXPECT_EQ(next_order(order(0, Kind::kRun), one_runs, 0).kind, Kind::kRun);
    const Order end = next_order(order(0, Kind::kRun),
                                 {make(0, State::kSucceeded), make(0, State::kSucceeded)}, 3);
    EXPECT_EQ(end.kind, Kind::kEnd);
    EXPECT_EQ(end.code, 0);
}

TEST(NextOrder, StopsWithTheFirstFailure) {
    const Reports reports = {make(0, State::kRunning), make(0, State::kFailed, 7),
                             make(0, State::kFailed, 8)};
    const Order stop = next_order(order(0, Kind::kRun), reports, 0);
    EXPECT_EQ(stop.kind, Kind::kStop);
    EXPECT_EQ(stop.code, 7);
    EXPECT_EQ(stop.text, "node failed with 7");
}

TEST(NextOrder, TheWeightiestFailureIsTheCause) {
    Report reaction = make(0, State::kFailed, 3);
    reaction.weight = Weight::kStatus;
    Report death = make(0, State::kFailed, 137);
    death.weight = Weight::kKill;
    const Order both = next_order(order(0, Kind::kRun), {reaction, death, reaction}, 0);
    EXPECT_EQ(both.code, 137);
    EXPECT_EQ(both.text, "node failed with 137");
    // One that is seen later, while the nodes end.
    const Order early = next_order(order(0, Kind::kRun), {reaction, make(0, State::kRunning)}, 0);
    EXPECT_EQ(early.code, 3);
    EXPECT_EQ(next_order(early, {reaction, death}, 0).code, 137);
    EXPECT_EQ(next_order(both, {reaction, reaction, reaction}, 0).code, 137);
    // The first of several equal failures stays.
    Report equal = make(0, State::kFailed, 4);
    equal.weight = Weight::kStatus;
    EXPECT_EQ(next_order(early, {equal, reaction}, 0).code, 3);
    // The next generation begins without a cause.
    const Order again = next_order(
        both, {make(0, State::kStopped), make(0, State::kStopped), make(0, State::kStopped)}, 3);
    EXPECT_EQ(again.kind, Kind::kRun);
    EXPECT_EQ(again.weight, Weight::kNone);
}

TEST(NextOrder, WaitsForAllNodesToEndThenEnds) {
    const Order stop = order(0, Kind::kStop, 7);
    const Order wait = next_order(stop, {make(0, State::kRunning), make(0, State::kStopped, 7)}, 0);
    EXPECT_EQ(wait.kind, Kind::kStop);
    EXPECT_EQ(wait.code, 7);
    const Order end = next_order(stop, {make(0, State::kStopped), make(0, State::kStopped, 7)}, 0);
    EXPECT_EQ(end.kind, Kind::kEnd);
    EXPECT_EQ(end.code, 7);
}

TEST(NextOrder, AFailureThatEndsAtOnceMayRestartAtOnce) {
    const Order next = next_order(order(2, Kind::kRun),
                                  {make(2, State::kSucceeded), make(2, State::kStopped, 7)}, 3);
    EXPECT_EQ(next.kind, Kind::kRun);
    EXPECT_EQ(next.generation, 3);
    EXPECT_EQ(next.code, 0);
}

TEST(NextOrder, RestartsNoMoreThanAllowed) {
    const Reports reports = {make(3, State::kStopped), make(3, State::kStopped, 7)};
    EXPECT_EQ(next_order(order(3, Kind::kStop, 7), reports, 3).kind, Kind::kEnd);
}

TEST(NextOrder, DoesNotRestartWhatSomebodyEnded) {
    const Reports reports = {make(0, State::kStopped, 7), make(0, State::kStopped, 130, false)};
    EXPECT_EQ(next_order(order(0, Kind::kStop, 7), reports, 3).kind, Kind::kEnd);
}

TEST(NextOrder, ReportsOfAnEarlierGenerationSayNothing) {
    const Reports reports = {make(1, State::kRunning), make(0, State::kStopped, 7)};
    const Order next = next_order(order(1, Kind::kRun), reports, 3);
    EXPECT_EQ(next.kind, Kind::kRun);
    EXPECT_EQ(next.generation, 1);
    EXPECT_EQ(next_order(order(1, Kind::kStop, 7),
                         {make(1, State::kStopped), make(0, State::kStopped)}, 3)
                  .kind,
              Kind::kStop);
}

TEST(NextOrder, ANodeThatNeverCameHoldsUpNoEnd) {
    EXPECT_EQ(next_order(order(0, Kind::kStop, 143),
                         {make(0, State::kStopped, 143, false), std::nullopt}, 3)
                  .kind,
              Kind::kEnd);
}

TEST(NextOrder, TheEndIsTheEnd) {
    const Reports reports = {make(0, State::kRunning), make(0, State::kFailed, 7)};
    const Order end = next_order(order(0, Kind::kEnd, 1), reports, 3);
    EXPECT_EQ(end.kind, Kind::kEnd);
    EXPECT_EQ(end.code, 1);
}

TEST(Nodes, ANodeThatDiesBeforeItsFirstReportIsLostSoon) {
    uv_loop_t loop;
    ASSERT_EQ(uv_loop_init(&loop), 0);
    {
        Store store = Store::serve({"127.0.0.1", 0}, "", Milliseconds(5'000));
        Nodes nodes(&loop, store, {0, 2, 1, 0, Milliseconds{300}});
        store.add("ddp/run/hello/1", 1);  // and nothing more
        const auto give_up = Clock::now() + std::chrono::seconds(20);
        while (nodes.order().kind != Kind::kEnd && Clock::now() < give_up)
            uv_run(&loop, UV_RUN_ONCE);
        EXPECT_EQ(nodes.order().text, "node 1 does not answer any more");
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    EXPECT_EQ(uv_loop_close(&loop), 0);
}

TEST(Nodes, OneWhoseReportsCannotBeReadHasNothingToSend) {
    uv_loop_t loop;
    ASSERT_EQ(uv_loop_init(&loop), 0);
    {
        Store store = Store::serve({"127.0.0.1", 0}, "", Milliseconds(5'000));
        Nodes nodes(&loop, store, {0, 3, 1});
        for (const int node : {1, 2}) store.add("ddp/run/hello/" + std::to_string(node), 1);
        store.set("ddp/run/node/1", "in the words of another version");
        const auto give_up = Clock::now() + std::chrono::seconds(20);
        while (nodes.order().kind != Kind::kEnd && Clock::now() < give_up)
            uv_run(&loop, UV_RUN_ONCE);
        EXPECT_EQ(nodes.order().text.find("node 1 writes reports that node 0 cannot read"), 0U)
            << nodes.order().text;
        EXPECT_EQ(nodes.still_here(), std::vector<int>{2});
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    EXPECT_EQ(uv_loop_close(&loop), 0);
}

TEST(ParseEndpoint, ReadsHostsAndAddresses) {
    EXPECT_EQ(parse_endpoint("host0:29500")->uri(), "tcp://host0:29500");
    EXPECT_EQ(parse_endpoint("10.0.0.1:1")->uri(), "tcp://10.0.0.1:1");
    EXPECT_EQ(parse_endpoint("[::1]:65535")->host, "::1");
    EXPECT_EQ(parse_endpoint("[::1]:65535")->uri(), "tcp://[::1]:65535");
    for (const char* bad :
         {"", ":", "host", "host:", ":1", "::1:5", "[]:5", "[::1]", "a b:1", "host:0", "host:65536",
          "host:-1", "host:+1", "host: 1", "host:1 ", "host:99999999999"}) {
        EXPECT_FALSE(parse_endpoint(bad)) << bad;
    }
}

// A store in a process of its own, which a test can stop.
class OtherStore {
public:
    OtherStore() {
        int ends[2];
        if (pipe(ends) != 0) return;
        pid_ = fork();
        if (pid_ == 0) serve(ends[1]);
        close(ends[1]);
        if (read(ends[0], &port_, sizeof port_) != sizeof port_) port_ = -1;
        close(ends[0]);
    }
    ~OtherStore() {
        if (pid_ <= 0) return;  // kill() would take -1 for all processes
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    OtherStore(const OtherStore&) = delete;
    OtherStore& operator=(const OtherStore&) = delete;

    std::string uri() const { return Endpoint{"127.0.0.1", port_}.uri(); }
    void stop() const {
        ASSERT_GT(pid_, 0);
        kill(pid_, SIGSTOP);
        waitpid(pid_, nullptr, WUNTRACED);
    }

private:
    [[noreturn]] static void serve(int tells) noexcept {
        const Store store = Store::serve({"127.0.0.1", 0}, "secret", std::chrono::seconds(10));
        const int port = store.port();
        if (write(tells, &port, sizeof port) == sizeof port) pause();
        _exit(1);
    }

    pid_t pid_ = -1;
    int port_ = -1;
};

// A node that comes in the last moment of --timeout still gives node 0's busy host the time to
// answer.
TEST(Store, KeepsNothingOfTheTimeThatWasLeftToReachIt) {
    const OtherStore other;
    const auto nobody = [](const std::string& why) { FAIL() << why; };
    Store store = Store::connect(other.uri(), "secret", std::chrono::milliseconds(900), nobody);
    other.stop();
    try {
        store.set("key", "value");
        FAIL() << "a stopped store has answered";
    } catch (const StoreError& error) {
        EXPECT_NE(std::string(error.what()).find("within 5000 ms"), std::string::npos)
            << error.what();
    }
}

TEST(Store, ThatNeverComesIsWaitedForAsLongAsWasSaid) {
    int told = 0;
    try {
        Store::connect("tcp://127.0.0.1:1", "secret", std::chrono::milliseconds(400),
                       [&](const std::string&) { ++told; });
        FAIL() << "there is no store";
    } catch (const StoreError& error) {
        EXPECT_TRUE(error.is_absence());
        EXPECT_NE(std::string(error.what()).find("127.0.0.1:1"), std::string::npos) << error.what();
        EXPECT_LE(told, 1);
    }
}

}  // namespace
}  // namespace ddprun
