// A chart of one step's time: a bar for each thread, cut into what the thread did, one after the other. SVG, because pages of results
// show it, and text in it stays text. As in chart.h: plain data in, a picture out.
#pragma once

#include <string>
#include <vector>

namespace orrery::tool {

struct StepChart {
  std::string title, subtitle;
  std::vector<std::string> parts;            // names of the pieces, in order; the legend
  std::vector<std::string> bars;             // names of the bars
  std::vector<std::vector<double>> lengths;  // (bars, parts), microseconds; a length that is no positive number is not drawn
  std::vector<bool> idle;                    // (parts): grey, for time in which nothing is computed
};

// The text of the SVG file. Throws Failure, with the chart's title, if the sizes disagree.
std::string svg(const StepChart& chart);

}  // namespace orrery::tool
