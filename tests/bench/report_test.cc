// Rows as a table and as a file of comma-separated values.
#include "report.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace bench {
namespace {

std::vector<Row> two_rows() {
    Row row;
    row["backend"] = "gloo, \"ring\"";
    row["bytes"] = 4096;
    row["median_ms"] = 0.25;
    Row other = row;
    other["backend"] = "shm";
    return {row, other};
}

TEST(Report, CsvQuotesWhatNeedsIt) {
    char folder[] = "/tmp/ddp_report_test.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    const std::string path = std::string(folder) + "/rows.csv";
    write_csv(path, two_rows());
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT_EQ(text.str(),
              "backend,bytes,median_ms\n\"gloo, \"\"ring\"\"\",4096,0.25\nshm,4096,0.25\n");
    std::filesystem::remove_all(folder);
}

TEST(Report, CsvThatCannotBeWrittenIsAnError) {
    EXPECT_THROW(write_csv("/no/such/folder/rows.csv", two_rows()), std::runtime_error);
}

TEST(Report, TableHasALineForKeysAndForEachRow) {
    std::ostringstream text;
    print_table(text, two_rows());
    EXPECT_EQ(text.str(),
              "     backend  bytes  median_ms\n"
              "gloo, \"ring\"   4096       0.25\n"
              "         shm   4096       0.25\n");
}

}  // namespace
}  // namespace bench
