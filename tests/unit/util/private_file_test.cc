// Which files are those of a user alone.
#include "util/private_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace libddp {
namespace {

constexpr uid_t kNobody = 65534, kStranger = 4321;

// A folder to which everybody may write.
class PrivateFile : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_NE(mkdtemp(folder_), nullptr);
        ASSERT_EQ(chmod(folder_, 0777), 0);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string path(const std::string& name) const { return std::string(folder_) + "/" + name; }
    std::string read(const std::string& name) const {
        std::ifstream file(path(name));
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void make(const std::string& name, uid_t owner) const {
        std::ofstream(path(name)) << "before";
        ASSERT_EQ(chmod(path(name).c_str(), 0666), 0);
        ASSERT_EQ(chown(path(name).c_str(), owner, static_cast<gid_t>(-1)), 0);
    }
    void expect_refused(const std::string& name) const {
        EXPECT_THROW(write_private_file(path(name), O_APPEND, "x"), std::runtime_error) << name;
        EXPECT_EQ(read(name), "before");
    }
    std::ptrdiff_t files() const {
        return std::distance(std::filesystem::directory_iterator(folder_),
                             std::filesystem::directory_iterator());
    }

private:
    char folder_[32] = "/tmp/ddp-private-XXXXXX";
};

// Files of this thread belong to nobody, as those of root do over NFS, while its user is still
// root.
class AsOverNfs {
public:
    AsOverNfs() { setfsuid(kNobody); }
    ~AsOverNfs() { setfsuid(0); }
};

TEST_F(PrivateFile, IsForItsUserOnly) {
    make("file", geteuid());
    write_private_file(path("file"), O_APPEND, " x");
    EXPECT_EQ(read("file"), "before x");
    struct stat facts {};
    ASSERT_EQ(stat(path("file").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600U);
    EXPECT_THROW(write_private_file(path("file"), O_EXCL, "x"), std::runtime_error);
    write_private_file(path("other"), O_EXCL, "x");
    EXPECT_EQ(read("other"), "x");
}

TEST_F(PrivateFile, IsNoLink) {
    make("symbolic", geteuid());
    std::filesystem::rename(path("symbolic"), path("there"));
    std::filesystem::create_symlink(path("there"), path("symbolic"));
    expect_refused("symbolic");
    std::filesystem::create_hard_link(path("there"), path("hard"));
    expect_refused("hard");
    std::filesystem::create_symlink(path("nowhere"), path("dangling"));
    EXPECT_THROW(write_private_file(path("dangling"), O_APPEND, "x"), std::runtime_error);
    EXPECT_FALSE(std::filesystem::exists(path("nowhere")));
}

TEST_F(PrivateFile, IsNotOfAnotherUser) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    make("file", kStranger);
    expect_refused("file");
    EXPECT_EQ(files(), 1);
}

TEST_F(PrivateFile, MayHaveTheOwnerThatTheFileSystemGivesToAllOfThisProcess) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
    make("of-a-stranger", kStranger);
    const AsOverNfs over_nfs;
    write_private_file(path("file"), O_APPEND, "x");
    write_private_file(path("file"), O_APPEND, "y");
    write_private_file(path("new"), O_EXCL, "z");
    EXPECT_EQ(read("file"), "xy");
    EXPECT_EQ(read("new"), "z");
    expect_refused("of-a-stranger");
    EXPECT_EQ(files(), 3);
}

}  // namespace
}  // namespace libddp
