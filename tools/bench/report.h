// The output of the benchmarks: rows of named values, as JSON lines or as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "statistics.h"

namespace bench {

// One measurement. Its keys are in the order in which they are printed.
using Row = nlohmann::ordered_json;

// The keys that every row begins with. `milliseconds`: one value an iteration.
Row make_row(const char* name, int world, const char* backend, std::int64_t bytes,
             const std::vector<double>& milliseconds);

// With one decimal.
std::string fixed(double value);

void print_json(std::ostream& out, const std::vector<Row>& rows);

// All rows must have the same keys, here and in write_csv.
void print_table(std::ostream& out, const std::vector<Row>& rows);

// A line of keys, then a line for each row, as RFC 4180 has it. Throws std::runtime_error when the
// file cannot be written.
void write_csv(const std::string& path, const std::vector<Row>& rows);

}  // namespace bench
