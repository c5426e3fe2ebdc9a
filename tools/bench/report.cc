#include "report.h"

#include <algorithm>
#include <iomanip>
#include <stdexcept>

#include "util/text.h"
#include "write_text.h"

namespace bench {
namespace {

std::string cell(const Row& value) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_number_float()) return value.dump();
    libddp::TextOut text;
    text << std::setprecision(4) << value.get<double>();
    return text.str();
}

// In quotes where a reader would misunderstand it otherwise.
std::string csv_field(const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
    return quoted + '"';
}

}  // namespace

Row make_row(const char* name, int world, const char* backend, std::int64_t bytes,
             const std::vector<double>& milliseconds) {
    const Summary summary = summarize(milliseconds);
    Row row;
    row["name"] = name;
    row["world"] = world;
    row["backend"] = backend;
    row["bytes"] = bytes;
    row["iters"] = milliseconds.size();
    row["median_ms"] = summary.median;
    row["p10_ms"] = summary.p10;
    row["p90_ms"] = summary.p90;
    return row;
}

std::string fixed(double value) {
    libddp::TextOut text;
    text.setf(std::ios::fixed);
    text.precision(1);
    text << value;
    return text.str();
}

void print_json(std::ostream& out, const std::vector<Row>& rows) {
    for (const Row& row : rows) out << row.dump() << '\n';
    out.flush();
}

void write_csv(const std::string& path, const std::vector<Row>& rows) {
    libddp::TextOut out;
    const auto line = [&out](const Row& row, auto text_of) {
        const char* separator = "";
        for (const auto& [key, value] : row.items()) {
            out << separator << csv_field(text_of(key, value));
            separator = ",";
        }
        out << '\n';
    };
    if (!rows.empty()) line(rows.front(), [](const std::string& key, const Row&) { return key; });
    for (const Row& row : rows) {
        line(row, [](const std::string&, const Row& value) {
            return value.is_string() ? value.get<std::string>() : value.dump();
        });
    }
    libddp::write_file(path, out.str());
}

void print_table(std::ostream& out, const std::vector<Row>& rows) {
    if (rows.empty()) return;
    std::vector<std::vector<std::string>> columns;
    for (const auto& [key, first] : rows.front().items()) {
        std::vector<std::string> column{key};
        for (const Row& row : rows) column.push_back(cell(row.at(key)));
        columns.push_back(std::move(column));
    }
    for (std::size_t line = 0; line <= rows.size(); ++line) {
        for (const auto& column : columns) {
            std::size_t width = 0;
            for (const std::string& text : column) width = std::max(width, text.size());
            out << (&column == &columns.front() ? "" : "  ") << std::setw(static_cast<int>(width))
                << column[line];
        }
        out << '\n';
    }
    out.flush();
}

}  // namespace bench
