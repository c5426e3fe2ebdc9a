// The gradient lists of real models, and the format in which they are written.
#include "models.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace bench {
namespace {

std::size_t distinct_names(const Model& model) {
    std::set<std::string> names;
    for (const Parameter& parameter : model) names.insert(parameter.name);
    return names.size();
}

const Parameter& find(const Model& model, const std::string& name) {
    for (const Parameter& parameter : model) {
        if (parameter.name == name) return parameter;
    }
    throw std::out_of_range(name);
}

// The counts are those of the published models (torchvision, Hugging Face).
TEST(Models, Resnet50) {
    const Model model = resnet50();
    EXPECT_EQ(model.size(), 161u);
    EXPECT_EQ(distinct_names(model), 161u);
    EXPECT_EQ(element_count(model), 25557032);
    EXPECT_EQ(model.front().name, "conv1.weight");
    EXPECT_EQ(find(model, "layer3.0.conv1.weight").shape, (std::vector<std::int64_t>{256, 512, 1, 1}));
    EXPECT_EQ(find(model, "layer4.0.downsample.0.weight").shape, (std::vector<std::int64_t>{2048, 1024, 1, 1}));
    EXPECT_EQ(model.back().name, "fc.bias");
}

TEST(Models, BertBase) {
    const Model model = find_model("bert-base");
    EXPECT_EQ(model.size(), 199u);
    EXPECT_EQ(distinct_names(model), 199u);
    EXPECT_EQ(element_count(model), 109482240);
    EXPECT_EQ(find(model, "encoder.layer.11.intermediate.dense.weight").shape, (std::vector<std::int64_t>{3072, 768}));
}

TEST(Models, BertLarge) {
    const Model model = find_model("bert-large");
    EXPECT_EQ(model.size(), 391u);
    EXPECT_EQ(distinct_names(model), 391u);
    EXPECT_EQ(element_count(model), 335141888);
}

TEST(Models, WrittenAndReadAgainAreTheSame) {
    const Model model = resnet50();
    std::stringstream text;
    write_model(text, model);
    const Model again = read_model(text);
    ASSERT_EQ(again.size(), model.size());
    for (std::size_t i = 0; i < model.size(); ++i) {
        EXPECT_EQ(again[i].name, model[i].name);
        EXPECT_EQ(again[i].shape, model[i].shape);
    }
}

TEST(Models, ReadsScalarsCommentsAndEmptyLines) {
    std::istringstream text("# two parameters\n\n  scale\nweight 3 0 5 # empty\n");
    const Model model = read_model(text);
    ASSERT_EQ(model.size(), 2u);
    EXPECT_EQ(model[0].count(), 1);
    EXPECT_EQ(model[1].count(), 0);
}

std::string complaint_about(const std::string& text) {
    std::istringstream in(text);
    try {
        read_model(in);
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "none";
}

TEST(Models, SaysWhichLineItCannotRead) {
    EXPECT_EQ(complaint_about("a 1\nb two\n"), "line 2 of the model: an extent is not a whole number");
    EXPECT_EQ(complaint_about("a 1.5\n"), "line 1 of the model: an extent is not a whole number");
    EXPECT_EQ(complaint_about("a -1\n"), "line 1 of the model: an extent is negative");
    EXPECT_EQ(complaint_about("a 4294967296 4294967296\n"), "line 1 of the model: too many elements");
    EXPECT_EQ(complaint_about("# nothing\n"), "the model has no parameters");
}

TEST(Models, NumbersMakeParametersOfOneSize) {
    const Model model = find_model("2000x256");
    ASSERT_EQ(model.size(), 2000u);
    EXPECT_EQ(model.front().count(), 256);
    EXPECT_NE(model.front().name, model.back().name);
    EXPECT_EQ(element_count(model), 2000 * 256);
}

TEST(Models, UnknownNameIsAnError) {
    EXPECT_THROW(find_model("0x256"), std::invalid_argument);
    EXPECT_THROW(find_model("/no/such/file"), std::invalid_argument);
}

}  // namespace
}  // namespace bench
