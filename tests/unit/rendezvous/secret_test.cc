// Where the job secret comes from, which files may hold it, and which addresses need it.
#include "rendezvous/secret.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>

#include "launch/secret_file.h"
#include "launch/user_secret.h"
#include "support.h"
#include "util/deadline.h"

namespace libddp::testing {
namespace {

using Variables = std::map<std::string, std::string>;

const std::string kLong = "0123456789abcdef";  // just long enough
const std::string kShort = "0123456789abcde";

// Files in a fresh folder.
class Files {
public:
    std::string write(const std::string& name, const std::string& content, mode_t mode = 0600) {
        std::ofstream(path(name), std::ios::binary) << content;
        chmod(path(name).c_str(), mode);
        return path(name);
    }
    std::string path(const std::string& name) const { return folder_.file() + "-" + name; }

private:
    TempPath folder_;
};

std::string secret_of(const StoreConfig& config, const Variables& variables) {
    return job_secret(config, Deadline::after_ms(kLongMs),
                      [&](const std::string& name) -> std::optional<std::string> {
                          auto found = variables.find(name);
                          return found == variables.end() ? std::nullopt
                                                          : std::optional(found->second);
                      });
}

struct Decision {
    const char* title;
    std::string uri;
    std::optional<std::string> given;
    bool insecure;
    Variables variables;
    std::optional<std::string> secret;  // nullopt: PERMISSION_DENIED
};

constexpr const char* kHere = "tcp://127.0.0.1:1";
constexpr const char* kOutside = "tcp://192.0.2.1:1";

TEST(Secret, TheFirstSourceThatHasOneCounts) {
    Files files;
    const std::string file = files.write("secret", "of the file, long\n");
    const Variables none, variable{{"DDP_SECRET", "of the variable"}},
        both{{"DDP_SECRET", "of the variable"}, {"DDP_SECRET_FILE", file}},
        of_file{{"DDP_SECRET", ""}, {"DDP_SECRET_FILE", file}},
        nothing{{"DDP_SECRET", ""}, {"DDP_SECRET_FILE", ""}};
    const std::string of_user = user_secret([](const std::string&) { return std::nullopt; });
    EXPECT_GE(of_user.size(), kShortestSecret);
    const Decision decisions[] = {
        {"the program", kHere, "of the program", false, both, "of the program"},
        {"the program says none", kHere, "", false, both, ""},
        {"the variable", kHere, std::nullopt, false, both, "of the variable"},
        {"the variable without a file", kHere, std::nullopt, false, variable, "of the variable"},
        {"the file", kHere, std::nullopt, false, of_file, "of the file, long"},
        {"the file, outside", kOutside, std::nullopt, false, of_file, "of the file, long"},
        {"variables set to nothing", kHere, std::nullopt, false, nothing, of_user},
        {"none", kHere, std::nullopt, false, none, of_user},
        {"none, nor wanted", kHere, std::nullopt, true, none, ""},
        {"none, nor wanted in the environment",
         kHere,
         std::nullopt,
         false,
         {{"DDP_INSECURE", "1"}},
         ""},
    };
    for (const auto& each : decisions) {
        SCOPED_TRACE(each.title);
        EXPECT_EQ(secret_of({each.uri, false, kLongMs, each.given, each.insecure}, each.variables),
                  each.secret);
    }
}

TEST(Secret, AddressesBeyondLoopbackNeedALongOne) {
    std::vector<Decision> decisions;
    for (const char* uri : {"tcp://127.0.0.1:1", "tcp://127.255.255.254:1", "tcp://[::1]:1",
                            "tcp://localhost:1", "tcp://[::ffff:127.0.0.1]:1", "tcp://127.1:1"})
        for (const auto& secret : {std::string(), kShort, kLong})
            decisions.push_back({"loopback", uri, secret, false, {}, secret});
    for (const char* uri : {"tcp://192.0.2.1:1", "tcp://0.0.0.0:1", "tcp://[::]:1",
                            "tcp://[2001:db8::1]:1", "tcp://128.0.0.1:1", "tcp://126.255.255.255:1",
                            "tcp://[::2]:1", "tcp://[::ffff:192.0.2.1]:1"}) {
        decisions.push_back({"long enough", uri, kLong, false, {}, kLong});
        decisions.push_back(
            {"of the environment", uri, std::nullopt, false, {{"DDP_SECRET", kLong}}, kLong});
        for (const auto& secret : {std::string(), kShort}) {
            decisions.push_back({"too short", uri, secret, false, {}, std::nullopt});
            decisions.push_back({"too short, the variable",
                                 uri,
                                 std::nullopt,
                                 false,
                                 {{"DDP_SECRET", secret}},
                                 {}});
            decisions.push_back(
                {"DDP_INSECURE=0", uri, secret, false, {{"DDP_INSECURE", "0"}}, std::nullopt});
            decisions.push_back(
                {"DDP_INSECURE=", uri, secret, false, {{"DDP_INSECURE", ""}}, std::nullopt});
            decisions.push_back(
                {"DDP_INSECURE=1", uri, secret, false, {{"DDP_INSECURE", "1"}}, secret});
            decisions.push_back({"the program's flag", uri, secret, true, {}, secret});
            decisions.push_back(
                {"the program's flag wins", uri, secret, true, {{"DDP_INSECURE", "0"}}, secret});
        }
    }
    for (const auto& each : decisions) {
        SCOPED_TRACE(str(each.title, " ", each.uri, " '", each.given.value_or("-"), "'"));
        const StoreConfig config{each.uri, false, kLongMs, each.given, each.insecure};
        if (each.secret)
            EXPECT_EQ(secret_of(config, each.variables), *each.secret);
        else
            expect_error(DDP_ERROR_PERMISSION_DENIED,
                         {each.uri, "16 bytes", "DDP_SECRET=$(", "DDP_SECRET_FILE"},
                         [&] { secret_of(config, each.variables); });
    }
}

TEST(Secret, ANameThatNobodyKnowsMayBecomeAnyAddress) {
    const StoreConfig unknown{"tcp://no-such-host.invalid:1", false, kLongMs, std::nullopt};
    const auto error = error_of([&] { secret_of(unknown, {}); });
    // Some resolvers say no at once, others try for long.
    EXPECT_TRUE(error.code == DDP_ERROR_PERMISSION_DENIED || error.code == DDP_ERROR_TIMEOUT)
        << error.message;
    EXPECT_NE(error.message.find("no-such-host.invalid"), std::string::npos) << error.message;
    EXPECT_EQ(secret_of(unknown, {{"DDP_SECRET", kLong}}), kLong) << "nothing is looked up";
}

TEST(Secret, TheErrorSaysWhyAndHowAndDoesNotShowTheSecret) {
    const auto none = error_of([] { secret_of({kOutside, false, kLongMs}, {}); });
    for (const char* part :
         {"192.0.2.1 is not a loopback address", "There is no secret", "head -c 32 /dev/urandom",
          "127.0.0.1", "MASTER_ADDR", "DDP_INSECURE=1", "docs/ddprun.md"})
        EXPECT_NE(none.message.find(part), std::string::npos)
            << part << " is not in: " << none.message;
    const auto brief = error_of([] {
        secret_of({kOutside, false, kLongMs}, {{"DDP_SECRET", "hunter2"}});
    });
    EXPECT_NE(brief.message.find("shorter"), std::string::npos) << brief.message;
    EXPECT_EQ(brief.message.find("hunter2"), std::string::npos) << brief.message;
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {"DDP_INSECURE", "'yes'"}, [] {
        secret_of({kOutside, false, kLongMs}, {{"DDP_INSECURE", "yes"}});
    });
}

TEST(Secret, OpeningAStoreAsksForIt) {
    const std::string outside = "tcp://0.0.0.0:0";
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"0.0.0.0", "DDP_SECRET"},
                 [&] { open(outside, true); });
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"192.0.2.1", "DDP_SECRET"},
                 [] { open("tcp://192.0.2.1:1"); });
    EXPECT_LT(elapsed_ms(start), with_slack(2000)) << "before it connects";
    auto server = open(outside, true, kLong);
    EXPECT_TRUE(open(str("tcp://127.0.0.1:", server->port()), false, kLong)->list_keys("").empty());
    auto insecure = open_store({outside, true, kLongMs, "", true});
    EXPECT_TRUE(open(str("tcp://127.0.0.1:", insecure->port()))->list_keys("").empty());
    EXPECT_TRUE(insecure->reconnect(kLongMs)->list_keys("").empty());
}

TEST(Secret, ThatOfTheUserIsInAFileThatNobodyElseCanRead) {
    TempPath place;
    const std::string runtime = std::filesystem::path(place.file()).parent_path();
    const GetEnv get = [&](const std::string& name) -> std::optional<std::string> {
        return name == "XDG_RUNTIME_DIR" ? std::optional(runtime) : std::nullopt;
    };
    std::vector<std::future<std::string>> asked;
    for (int i = 0; i < 16; ++i)
        asked.push_back(std::async(std::launch::async, [&] { return user_secret(get); }));
    const std::string secret = user_secret(get);
    EXPECT_GE(secret.size(), kShortestSecret);
    for (auto& other : asked) EXPECT_EQ(other.get(), secret);
    const std::string folder = runtime + "/libddp";
    struct stat facts {};
    ASSERT_EQ(lstat(folder.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0700u);
    ASSERT_EQ(lstat((folder + "/secret").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1)
        << "nothing else is left there";

    // A folder of others is not used, whatever is in it.
    const std::string elsewhere = user_secret([](const std::string&) { return std::nullopt; });
    EXPECT_NE(elsewhere, secret);
    chmod(folder.c_str(), 0770);
    EXPECT_EQ(user_secret(get), elsewhere);
    chmod(folder.c_str(), 0700);
    EXPECT_EQ(user_secret(get), secret);
    std::filesystem::rename(folder, runtime + "/moved");
    std::filesystem::create_directory_symlink(runtime + "/moved", folder);
    EXPECT_EQ(user_secret(get), elsewhere);
    std::filesystem::remove(folder);
    std::filesystem::rename(runtime + "/moved", folder);
    // A file that others can read is an error: they may have read it.
    chmod((folder + "/secret").c_str(), 0644);
    expect_error(DDP_ERROR_PERMISSION_DENIED, {folder + "/secret", "open to other users"},
                 [&] { user_secret(get); });
}

TEST(Secret, AnotherUserOfThisMachineIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
    auto server = open_store({"tcp://127.0.0.1:0", true, kLongMs});
    EXPECT_TRUE(open_store({server->describe(), false, kLongMs})->list_keys("").empty())
        << "this user";
    const std::string uri = server->describe();
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t stranger = fork();
    if (stranger == 0) {
        alarm(20);
        std::string said;
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
        for (const char* secret : {static_cast<const char*>(nullptr), "", "guessed"}) {
            StoreConfig config{uri, false, 5'000};
            if (secret) config.secret = secret;
            const ErrorInfo error = error_of([&] { open_store(config); });
            said += error.code == DDP_ERROR_PERMISSION_DENIED ? "refused "
                                                              : str(error.code, " ", error.message);
        }
        if (write(ends[1], said.data(), said.size()) < 0) _exit(3);
        _exit(0);
    }
    close(ends[1]);
    char said[4096] = "";
    std::size_t size = 0;
    for (ssize_t count; size < sizeof said - 1 &&
                        (count = read(ends[0], said + size, sizeof said - 1 - size)) > 0;)
        size += static_cast<std::size_t>(count);
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(stranger, &status, 0), stranger);
    EXPECT_EQ(status, 0);
    EXPECT_STREQ(said, "refused refused refused ");
}

TEST(Secret, AnotherJobOfTheSameUserIsRefused) {
    for (const auto& secret : {std::optional<std::string>(), std::optional<std::string>(kLong),
                               std::optional<std::string>("")}) {
        StoreConfig config{"tcp://127.0.0.1:0", true, kLongMs, secret, false, "SLURM_JOB_ID=7\n"};
        auto server = open_store(config);
        config.uri = server->describe();
        config.is_server = false;
        EXPECT_TRUE(open_store(config)->list_keys("").empty());
        for (const char* job : {"SLURM_JOB_ID=8\n", ""}) {
            config.job = job;
            expect_error(DDP_ERROR_PERMISSION_DENIED, {"another job", "MASTER_PORT", "DDP_SECRET"},
                         [&] { open_store(config); });
        }
    }
}

TEST(Secret, AFileStoreNeedsNone) {
    TempPath path;
    EXPECT_TRUE(open(path.uri())->list_keys("").empty());
}

TEST(SecretFile, HoldsTextWithoutTheWhiteSpaceAroundIt) {
    Files files;
    for (const char* content : {"a secret", "a secret\n", "a secret\r\n", " \ta secret\n\n"})
        EXPECT_EQ(read_secret_file(files.write("file", content), "F"), "a secret");
    EXPECT_EQ(read_secret_file(files.write("largest", std::string(4096, 'x')), "F").size(), 4096u);
    EXPECT_EQ(read_secret_file(files.write("readonly", "a secret", 0400), "F"), "a secret");
    // Kubernetes: secret -> ..data/secret, ..data -> a folder.
    std::filesystem::create_directory(files.path("folder"));
    files.write("folder/secret", "behind links");
    std::filesystem::create_symlink(files.path("folder"), files.path("data"));
    std::filesystem::create_symlink(files.path("data") + "/secret", files.path("link"));
    EXPECT_EQ(read_secret_file(files.path("link"), "F"), "behind links");
}

TEST(SecretFile, EveryRefusalNamesTheSourceAndTheFile) {
    Files files;
    std::filesystem::create_directory(files.path("folder"));
    ASSERT_EQ(mkfifo(files.path("pipe").c_str(), 0600), 0);
    std::filesystem::create_symlink(files.write("target", "a secret", 0604), files.path("link"));
    struct {
        std::string path;
        ddp_status code;
        const char* says;
    } const cases[] = {
        {files.path("none"), DDP_ERROR_INVALID_ARGUMENT, "No such file"},
        {files.path("folder"), DDP_ERROR_INVALID_ARGUMENT, "not a regular file"},
        {files.path("pipe"), DDP_ERROR_INVALID_ARGUMENT, "not a regular file"},
        {files.write("empty", ""), DDP_ERROR_INVALID_ARGUMENT, "is empty"},
        {files.write("blank", " \n"), DDP_ERROR_INVALID_ARGUMENT, "is empty"},
        {files.write("binary", std::string("a\0b", 3)), DDP_ERROR_INVALID_ARGUMENT, "not text"},
        {files.write("large", std::string(4097, 'x')), DDP_ERROR_INVALID_ARGUMENT, "4096 bytes"},
        {files.write("others", "a secret", 0604), DDP_ERROR_PERMISSION_DENIED,
         "open to other users: chmod 600"},
        {files.path("link"), DDP_ERROR_PERMISSION_DENIED, "open to other users"},
        {files.write("group", "a secret", 0620), DDP_ERROR_PERMISSION_DENIED,
         "open to its group: chmod 600"},
    };
    for (const auto& each : cases)
        expect_error(each.code, {"DDP_SECRET_FILE", each.path, each.says}, [&] {
            secret_of({kHere, false, kLongMs}, {{"DDP_SECRET_FILE", each.path}});
        });
    if (getuid() != 0) return;
    const std::string foreign = files.write("foreign", "a secret");
    ASSERT_EQ(chown(foreign.c_str(), 4711, 4711), 0);
    expect_error(DDP_ERROR_PERMISSION_DENIED, {foreign, "another user (uid 4711)"},
                 [&] { read_secret_file(foreign, "F"); });
}

TEST(SecretFile, WhoMayOwnItAndReadIt) {
    constexpr uid_t kMe = 1000, kOther = 1001, kRoot = 0;
    struct {
        uid_t user, owner;
        mode_t mode;
        bool allowed;
    } const cases[] = {
        {kMe, kMe, 0600, true},      {kMe, kMe, 0400, true},     {kMe, kMe, 0700, true},
        {kMe, kMe, 0640, false},     {kMe, kMe, 0620, false},    {kMe, kMe, 0610, false},
        {kMe, kMe, 0604, false},     {kMe, kMe, 0602, false},    {kMe, kMe, 0601, false},
        {kMe, kMe, 0644, false},     {kMe, kRoot, 0600, true},   {kMe, kRoot, 0440, true},
        {kMe, kRoot, 0640, true},    {kMe, kRoot, 0660, false},  {kMe, kRoot, 0450, false},
        {kMe, kRoot, 0444, false},   {kMe, kRoot, 0644, false},  {kMe, kOther, 0600, false},
        {kMe, kOther, 0640, false},  {kRoot, kRoot, 0600, true}, {kRoot, kRoot, 0440, true},
        {kRoot, kRoot, 0644, false}, {kRoot, kMe, 0600, false},
    };
    for (const auto& each : cases) {
        const std::string fault = secret_file_fault(each.user, each.owner, each.mode | S_IFREG);
        EXPECT_EQ(fault.empty(), each.allowed)
            << std::oct << each.mode << std::dec << " of " << each.owner << " for " << each.user
            << ": " << fault;
    }
}

}  // namespace
}  // namespace libddp::testing
