// The report: one page that shows a job. report.py makes it.
#pragma once

#include <string>

namespace why {

// summary: of why::summarize. Runs report.py with a python3 that has plotly, and waits for it.
// Throws std::runtime_error if there is no page then.
void write_report(const std::string& path, const std::string& summary);

}  // namespace why
