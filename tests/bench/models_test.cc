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
    EXPECT_EQ(find(model, "layer3.0.conv1.weight").shape,
              (std::vector<std::int64_t>{256, 512, 1, 1}));
    EXPECT_EQ(find(model, "layer4.0.downsample.0.weight").shape,
              (std::vector<std::int64_t>{2048, 1024, 1, 1}));
    EXPECT_EQ(model.back().name, "fc.bias");
}

TEST(Models, Vgg16) {
    const Model model = find_model("vgg16");
    EXPECT_EQ(model.size(), 32u);
    EXPECT_EQ(distinct_names(model), 32u);
    EXPECT_EQ(element_count(model), 138357544);
    EXPECT_EQ(find(model, "features.28.weight").shape, (std::vector<std::int64_t>{512, 512, 3, 3}));
    EXPECT_EQ(find(model, "classifier.0.weight").shape, (std::vector<std::int64_t>{4096, 25088}));
}

TEST(Models, BertBase) {
    const Model model = find_model("bert-base");
    EXPECT_EQ(model.size(), 199u);
    EXPECT_EQ(distinct_names(model), 199u);
    EXPECT_EQ(element_count(model), 109482240);
    EXPECT_EQ(find(model, "encoder.layer.11.intermediate.dense.weight").shape,
              (std::vector<std::int64_t>{3072, 768}));
}

TEST(Models, BertLarge) {
    const Model model = find_model("bert-large");
    EXPECT_EQ(model.size(), 391u);
    EXPECT_EQ(distinct_names(model), 391u);
    EXPECT_EQ(element_count(model), 335141888);
}

double gigaworks(const Model& model) {
    double work = 0;
    for (const Parameter& parameter : model) work += parameter.work();
    return 1e-9 * work;
}

// torchvision states 4.09 billion multiply-adds for a picture; batch norms and biases add half a
// percent.
TEST(Models, Resnet50DoesTheWorkThatIsPublished) {
    const Model model = resnet50();
    EXPECT_NEAR(gigaworks(model), 4.09, 0.03);
    EXPECT_EQ(find(model, "conv1.weight").uses, 112 * 112);
    EXPECT_EQ(find(model, "layer2.0.conv1.weight").uses, 56 * 56);
    EXPECT_EQ(find(model, "layer2.0.conv2.weight").uses, 28 * 28);
    EXPECT_EQ(find(model, "layer2.0.downsample.0.weight").uses, 28 * 28);
    EXPECT_EQ(find(model, "layer4.2.conv3.weight").uses, 7 * 7);
    EXPECT_EQ(find(model, "fc.weight").uses, 1);
}

// torchvision states 15.47 billion.
TEST(Models, Vgg16DoesTheWorkThatIsPublished) {
    const Model model = vgg16();
    EXPECT_NEAR(gigaworks(model), 15.47, 0.03);
    EXPECT_EQ(find(model, "features.5.weight").uses, 112 * 112);
}

// 85 million elements in the layers, once for each of 128 tokens; next to nothing for embeddings,
// which are looked up.
TEST(Models, BertWorksInItsLayers) {
    const Model model = find_model("bert-base");
    EXPECT_NEAR(gigaworks(model), 128 * 0.0851, 0.05);
    EXPECT_LT(find(model, "embeddings.word_embeddings.weight").work(), 128 * 768 + 1);
}

TEST(Models, SharesOfTheWorkAddUpToOne) {
    std::istringstream text("a 10 @3\nb 2 5\nc 100 @0\n");
    EXPECT_EQ(work_shares(read_model(text)), (std::vector<double>{0.75, 0.25, 0}));
    std::istringstream idle("a 10 @0\nb 30 @0\nempty 0\n");
    EXPECT_EQ(work_shares(read_model(idle)), (std::vector<double>{0.25, 0.75, 0}));
    EXPECT_EQ(work_shares(Model{{"empty", {0}, 1}}), (std::vector<double>{0}));
}

TEST(Models, WrittenAndReadAgainAreTheSame) {
    Model model = find_model("bert-base");
    for (const Parameter& parameter : resnet50()) model.push_back(parameter);
    std::stringstream text;
    write_model(text, model);
    const Model again = read_model(text);
    ASSERT_EQ(again.size(), model.size());
    for (std::size_t i = 0; i < model.size(); ++i) {
        EXPECT_EQ(again[i].name, model[i].name);
        EXPECT_EQ(again[i].shape, model[i].shape);
        EXPECT_EQ(again[i].uses, model[i].uses);
    }
}

TEST(Models, ReadsScalarsCommentsAndEmptyLines) {
    std::istringstream text(
        "# three parameters\n\n  scale\nweight 3 0 5 # empty\nother @2.5 # a scalar\n");
    const Model model = read_model(text);
    ASSERT_EQ(model.size(), 3u);
    EXPECT_EQ(model[2].count(), 1);
    EXPECT_EQ(model[2].uses, 2.5);
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
    EXPECT_EQ(complaint_about("a 1\nb two\n"),
              "line 2 of the model: an extent is not a whole number");
    EXPECT_EQ(complaint_about("a 1.5\n"), "line 1 of the model: an extent is not a whole number");
    EXPECT_EQ(complaint_about("a -1\n"), "line 1 of the model: an extent is negative");
    EXPECT_EQ(complaint_about("a 4294967296 4294967296\n"),
              "line 1 of the model: too many elements");
    std::string many;
    for (int i = 0; i < 20; ++i) many += "a 500000000000000000\n";  // 16 of them have 2^63 bytes
    EXPECT_EQ(complaint_about(many), "line 2 of the model: too many elements");
    EXPECT_EQ(complaint_about("a 1000 @1e307\n"),
              "line 1 of the model: elements are used too often");
    for (const char* bad : {"a 1 @", "a 1 @x", "a 1 @-1", "a 1 @2 3", "a 1 @ @"})
        EXPECT_EQ(complaint_about(bad),
                  "line 1 of the model: what follows '@' is not one number from 0");
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
