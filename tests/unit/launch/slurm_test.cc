#include <gtest/gtest.h>

#include "launch/environment.h"

namespace libddp {
namespace {

TEST(Slurm, FirstHost) {
    EXPECT_EQ(first_slurm_host("n[003-007,9],x1"), "n003");
    EXPECT_EQ(first_slurm_host("x1"), "x1");
    EXPECT_EQ(first_slurm_host("x1,n[1-2]"), "x1");
    EXPECT_EQ(first_slurm_host("n[12]"), "n12");
    EXPECT_EQ(first_slurm_host("n[9,1-3]-ib"), "n9-ib");
    EXPECT_EQ(first_slurm_host("rack[1-2]node[03-4],y"), "rack1node03");
    EXPECT_EQ(first_slurm_host("my-host.example.org"), "my-host.example.org");
}

TEST(Slurm, MalformedHostList) {
    for (const char* list : {"", ",a", "n[1-2", "n[]", "n[a-b]", "n]1", "n[-2]"})
        EXPECT_FALSE(first_slurm_host(list)) << list;
}

TEST(Slurm, TasksOnNode) {
    EXPECT_EQ(slurm_tasks_on_node("4", 0), 4);
    EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 0), 2);
    EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 2), 2);
    EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 3), 1);
    EXPECT_FALSE(slurm_tasks_on_node("2(x3),1", 4));
    EXPECT_FALSE(slurm_tasks_on_node("2(x", 0));
    EXPECT_FALSE(slurm_tasks_on_node("2(xa)", 0));
    EXPECT_FALSE(slurm_tasks_on_node("two", 0));
    EXPECT_FALSE(slurm_tasks_on_node("", 0));
}

}  // namespace
}  // namespace libddp
