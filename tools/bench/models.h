// The gradients of real models, as lists of named shapes.
#pragma once

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace bench {

struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;  // empty: a scalar
    // How often each element is multiplied for one input: a weight of a convolution once for each
    // pixel of its output, one of a transformer once for each token.
    double uses = 1;

    std::int64_t count() const;  // elements
    double work() const { return uses * static_cast<double>(count()); }
};

// In the order of registration, which is that of the forward pass.
using Model = std::vector<Parameter>;

std::int64_t element_count(const Model& model);

// Each parameter's share of the work of a backward pass. They add up to 1; without any work they
// follow the elements.
std::vector<double> work_shares(const Model& model);

// torchvision's resnet50: 161 parameters, 25,557,032 elements; used as for pictures of 224 x 224.
Model resnet50();

// torchvision's vgg16: 32 parameters, 138,357,544 elements, nine of ten in the last three layers;
// used as for pictures of 224 x 224.
Model vgg16();

// Hugging Face's bert-base-uncased (199 parameters, 109,482,240 elements) is 12 layers of 768,
// bert-large-uncased (391; 335,141,888) 24 of 1,024; used as for 128 tokens.
Model bert(std::int64_t layers, std::int64_t hidden);

// So many parameters, all with as many elements.
Model uniform(std::int64_t parameters, std::int64_t elements);

// One parameter a line: a name, then its extents, then, if it is not 1, '@' and how often each
// element is used, between blanks. Empty lines and what follows a '#' do not count. Throws
// std::invalid_argument with the number of a line that it cannot read, and when there is no
// parameter at all.
Model read_model(std::istream& in);

// Writes what read_model reads.
void write_model(std::ostream& out, const Model& model);

// "resnet50", "vgg16", "bert-base", "bert-large", "NxM" (N parameters of M elements), or the path
// of a file. Throws std::invalid_argument.
Model find_model(const std::string& name);

}  // namespace bench
