#include "models.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "util/text.h"

namespace bench {
namespace {

using Shape = std::vector<std::int64_t>;

// Collects parameters under names with dots, as PyTorch's named_parameters writes them.
class Builder {
public:
    // How often each element of what follows is used.
    void used(double uses) { uses_ = uses; }

    void weight(const std::string& name, Shape shape) { add(name + ".weight", std::move(shape)); }

    void weight_and_bias(const std::string& name, Shape shape) {
        const std::int64_t outputs = shape.front();
        weight(name, std::move(shape));
        add(name + ".bias", {outputs});
    }

    Model take() { return std::move(model_); }

private:
    void add(std::string name, Shape shape) {
        model_.push_back({std::move(name), std::move(shape), uses_});
    }

    double uses_ = 1;
    Model model_;
};

double square(int side) {
    return static_cast<double>(side) * side;
}

// A bottleneck block of ResNet (He et al. 2015): 1x1 down, 3x3, 1x1 up by 4, each with a batch
// norm. Its pictures come with so many pixels a side; the 3x3 makes them smaller, as in
// torchvision.
void add_bottleneck(Builder& b, const std::string& name, std::int64_t inputs, std::int64_t width,
                    bool downsample, int side, int stride) {
    b.used(square(side));
    b.weight(name + ".conv1", {width, inputs, 1, 1});
    b.weight_and_bias(name + ".bn1", {width});
    b.used(square(side / stride));
    b.weight(name + ".conv2", {width, width, 3, 3});
    b.weight_and_bias(name + ".bn2", {width});
    b.weight(name + ".conv3", {4 * width, width, 1, 1});
    b.weight_and_bias(name + ".bn3", {4 * width});
    if (downsample) {
        b.weight(name + ".downsample.0", {4 * width, inputs, 1, 1});
        b.weight_and_bias(name + ".downsample.1", {4 * width});
    }
}

// A transformer layer of BERT (Devlin et al. 2018) under its Hugging Face names.
void add_bert_layer(Builder& b, const std::string& name, std::int64_t hidden) {
    for (const char* part : {"query", "key", "value"}) {
        b.weight_and_bias(name + ".attention.self." + part, {hidden, hidden});
    }
    b.weight_and_bias(name + ".attention.output.dense", {hidden, hidden});
    b.weight_and_bias(name + ".attention.output.LayerNorm", {hidden});
    b.weight_and_bias(name + ".intermediate.dense", {4 * hidden, hidden});
    b.weight_and_bias(name + ".output.dense", {hidden, 4 * hidden});
    b.weight_and_bias(name + ".output.LayerNorm", {hidden});
}

// The most elements of a model: their bytes fit as well.
constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 16;

std::invalid_argument bad_line(int number, const std::string& why) {
    return std::invalid_argument("line " + std::to_string(number) + " of the model: " + why);
}

// False for a line that holds no parameter.
bool parse_line(const std::string& line, int number, Parameter& parameter) {
    libddp::TextIn words(line.substr(0, line.find('#')));
    if (!(words >> parameter.name)) return false;
    std::int64_t elements = 1;
    for (std::int64_t extent = 0; (words >> std::ws).peek() != '@' && words >> extent;) {
        if (extent < 0) throw bad_line(number, "an extent is negative");
        if (extent > 0 && elements > kMostElements / extent) {
            throw bad_line(number, "too many elements");
        }
        elements *= extent;
        parameter.shape.push_back(extent);
    }
    if (words.peek() == '@') {
        words.get();
        if (!(words >> parameter.uses) || !(parameter.uses >= 0) || !(words >> std::ws).eof())
            throw bad_line(number, "what follows '@' is not one number from 0");
        return true;
    }
    if (!words.eof()) throw bad_line(number, "an extent is not a whole number");
    return true;
}

}  // namespace

std::int64_t Parameter::count() const {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    return elements;
}

std::int64_t element_count(const Model& model) {
    std::int64_t elements = 0;
    for (const Parameter& parameter : model) elements += parameter.count();
    return elements;
}

std::vector<double> work_shares(const Model& model) {
    double work = 0;
    for (const Parameter& parameter : model) work += parameter.work();
    const auto elements = static_cast<double>(std::max<std::int64_t>(1, element_count(model)));
    std::vector<double> shares;
    for (const Parameter& p : model)
        shares.push_back(work > 0 ? p.work() / work : static_cast<double>(p.count()) / elements);
    return shares;
}

Model resnet50() {
    Builder b;
    b.used(square(112));
    b.weight("conv1", {64, 3, 7, 7});
    b.weight_and_bias("bn1", {64});
    const int blocks[] = {3, 4, 6, 3};
    std::int64_t inputs = 64;
    int side = 56;  // after the pooling
    for (int stage = 0; stage < 4; ++stage) {
        const std::int64_t width = std::int64_t{64} << stage;
        for (int block = 0; block < blocks[stage]; ++block) {
            const std::string name =
                "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
            const int stride = stage > 0 && block == 0 ? 2 : 1;
            add_bottleneck(b, name, inputs, width, block == 0, side, stride);
            inputs = 4 * width;
            side /= stride;
        }
    }
    b.used(1);
    b.weight_and_bias("fc", {1000, inputs});
    return b.take();
}

Model vgg16() {
    Builder b;
    const int convolutions[] = {2, 2, 3, 3, 3};
    std::int64_t inputs = 3;
    int side = 224, layer = 0;  // numbers count ReLUs and poolings, as in torchvision
    for (int stage = 0; stage < 5; ++stage) {
        const std::int64_t width = std::min<std::int64_t>(512, std::int64_t{64} << stage);
        b.used(square(side));
        for (int i = 0; i < convolutions[stage]; ++i, layer += 2) {
            b.weight_and_bias("features." + std::to_string(layer), {width, inputs, 3, 3});
            inputs = width;
        }
        ++layer;
        side /= 2;
    }
    b.used(1);
    b.weight_and_bias("classifier.0", {4096, inputs * side * side});
    b.weight_and_bias("classifier.3", {4096, 4096});
    b.weight_and_bias("classifier.6", {1000, 4096});
    return b.take();
}

Model bert(std::int64_t layers, std::int64_t hidden) {
    constexpr double kTokens = 128;
    Builder b;
    // Each token takes one row of each of these.
    b.used(kTokens / 30522);
    b.weight("embeddings.word_embeddings", {30522, hidden});
    b.used(kTokens / 512);
    b.weight("embeddings.position_embeddings", {512, hidden});
    b.used(kTokens / 2);
    b.weight("embeddings.token_type_embeddings", {2, hidden});
    b.used(kTokens);
    b.weight_and_bias("embeddings.LayerNorm", {hidden});
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        add_bert_layer(b, "encoder.layer." + std::to_string(layer), hidden);
    }
    b.used(1);
    b.weight_and_bias("pooler.dense", {hidden, hidden});
    return b.take();
}

Model uniform(std::int64_t parameters, std::int64_t elements) {
    Model model;
    for (std::int64_t i = 0; i < parameters; ++i)
        model.push_back({"param" + std::to_string(i), {elements}, 1});
    return model;
}

Model read_model(std::istream& in) {
    Model model;
    std::string line;
    std::int64_t elements = 0;
    double work = 0;
    for (int number = 1; std::getline(in, line); ++number) {
        Parameter parameter;
        if (!parse_line(line, number, parameter)) continue;
        if (elements > kMostElements - parameter.count())
            throw bad_line(number, "too many elements");
        elements += parameter.count();
        work += parameter.work();
        if (!std::isfinite(work)) throw bad_line(number, "elements are used too often");
        model.push_back(std::move(parameter));
    }
    if (model.empty()) throw std::invalid_argument("the model has no parameters");
    return model;
}

void write_model(std::ostream& out, const Model& model) {
    out << std::setprecision(std::numeric_limits<double>::max_digits10);
    for (const Parameter& parameter : model) {
        out << parameter.name;
        for (const std::int64_t extent : parameter.shape) out << ' ' << extent;
        if (parameter.uses != 1) out << " @" << parameter.uses;
        out << '\n';
    }
}

// "2000x256": so many parameters of so many elements, each from 1 to 9,999,999. (A std::regex would
// say it in a line, but GCC 12 warns of that header under the sanitizers.)
static std::optional<Model> read_uniform(const std::string& name) {
    constexpr int kMost = 9'999'999;
    int numbers[2] = {};
    const char *at = name.data(), *const end = at + name.size();
    for (int& number : numbers) {
        const auto [stop, error] = std::from_chars(at, end, number);
        if (error != std::errc() || number < 1 || number > kMost) return std::nullopt;
        at = stop;
        if (&number == numbers && (at == end || *at++ != 'x')) return std::nullopt;
    }
    if (at != end) return std::nullopt;
    return uniform(numbers[0], numbers[1]);
}

Model find_model(const std::string& name) {
    if (const auto model = read_uniform(name)) return *model;
    if (name == "resnet50") return resnet50();
    if (name == "vgg16") return vgg16();
    if (name == "bert-base") return bert(12, 768);
    if (name == "bert-large") return bert(24, 1024);
    libddp::FileIn file(name);
    if (!file) throw std::invalid_argument("no model and no file is called " + name);
    return read_model(file);
}

}  // namespace bench
