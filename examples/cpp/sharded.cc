/* sharded.cc: ../c/sharded.c in C++. AdamW's work and state are divided by the number of ranks, and
 * any number of ranks goes on where others have stopped.
 *
 *     ddprun -n 4 ./sharded_cpp FOLDER 1        one epoch, which is saved in FOLDER
 *     ddprun -n 3 ./sharded_cpp FOLDER 2        and the second one
 *
 * Built by hand, here: cc -O3 -c ../c/mlp.c ../c/idx.c && c++ sharded.cc mlp.o idx.o $(pkg-config
 * --cflags --libs ddp) -lz -lm -o sharded_cpp
 */
#define DDP_EXPERIMENTAL 1 /* norm.h, optimizer.h, shard.h, shard_state.h */

#include <cstdio>
#include <cstdlib>
#include <ddp/ddp.hpp>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include "../c/idx.h"
#include "../c/mlp.h"
#include "../c/random.h"
}

constexpr int batch_size = 48, seed = 1;

/* Its gradients live in the buckets, and biases do not decay. */
class Trainer {
public:
    Trainer(ddp::Group& group, mlp& net)
        : group_(group),
          net_(net),
          context_(group, options()),
          norm_(share()),
          optimizer_(context_, "adamw", "weight_decay=0.1") {
        for (int i = 0; i < MLP_TENSORS; ++i) {
            net.tensors[i].gradient = context_.grad_view<float>(i);
            if (net.tensors[i].ndim == 1) optimizer_.set(i, "weight_decay", 0);
        }
    }

    /* One pass over the digits. Returns the loss of all ranks. */
    double train_epoch(const digits& set, int epoch) {
        const int part = batch_size / group_.world_size();
        std::vector<int> order(static_cast<std::size_t>(set.count));
        random_order(order.data(), set.count, seed, epoch);
        optimizer_.set("lr", 1e-3 / (epoch + 1));
        double loss = 0;
        for (int first = 0; first + batch_size <= set.count; first += batch_size) {
            const mlp_batch batch{set.images, set.labels,
                                  order.data() + first + group_.rank() * part, part};
            wait_for_values();
            loss += mlp_forward(&net_, &batch).loss;
            mlp_backward(&net_, &batch, announce, &context_);
            context_.finalize();
            context_.clip_grad_norm(norm_, 1.0);
            optimizer_.step();
            context_.publish(); /* the new values travel */
        }
        wait_for_values();
        group_.allreduce(&loss, 1).wait();
        return loss / (set.count / batch_size * batch_size);
    }

    void save(const std::string& folder, int epochs) {
        add_arrays();
        context_.save_shards(folder, std::to_string(epochs));
    }

    /* How many epochs others have trained. */
    int go_on(const std::string& folder) {
        add_arrays();
        try {
            return std::stoi(context_.load_shards(folder));
        } catch (const ddp::Error& error) {
            if (error.status() != DDP_ERROR_NOT_FOUND) throw;
            return 0; /* the first ones */
        }
    }

private:
    static ddp_context_options options() {
        ddp_context_options chosen = ddp::Context::defaults();
        chosen.flags = DDP_CONTEXT_SHARD;
        return chosen;
    }

    std::int32_t share() {
        for (const mlp_tensor& tensor : net_.tensors)
            context_.add_param(tensor.name, {tensor.shape, tensor.shape + tensor.ndim},
                               tensor.value);
        const std::int32_t norm = context_.track_grad_norm();
        context_.commit();
        return norm;
    }

    static void announce(void* context, int tensor) {
        static_cast<ddp::Context*>(context)->grad_ready(tensor);
    }

    void wait_for_values() {
        for (int i = 0; i < MLP_TENSORS; ++i) context_.wait_value(i);
    }

    /* The arrays of this rank, for the next save or load. */
    void add_arrays() {
        for (const ddp_piece& piece : context_.pieces())
            context_.add_shard_array("value", piece.param, piece.first, piece.count,
                                     static_cast<float*>(piece.value), piece.replicated != 0);
        optimizer_.add_shard_arrays(context_);
    }

    ddp::Group& group_;
    mlp& net_;
    ddp::Context context_;
    std::int32_t norm_; /* of all gradients */
    ddp::Optimizer optimizer_;
};

static void run(const std::string& folder, int epochs) {
    ddp::Group group = ddp::Group::or_alone();
    digits train, test;
    mlp net;
    if (batch_size % group.world_size() != 0 || digits_load(&train, MNIST_DATA_DIR, "train") != 0 ||
        digits_load(&test, MNIST_DATA_DIR, "t10k") != 0 ||
        mlp_create(&net, batch_size / group.world_size(), 0, seed) != 0)
        throw std::runtime_error("there are no digits, or the number of ranks does not divide 48");
    {
        Trainer trainer(group, net);
        for (int epoch = trainer.go_on(folder); epoch < epochs; ++epoch) {
            const double loss = trainer.train_epoch(train, epoch);
            if (group.rank() == 0) std::printf("epoch %d  loss %.6f\n", epoch + 1, loss);
            trainer.save(folder, epoch + 1);
        }
    }
    if (group.rank() == 0)
        std::printf("test accuracy %.2f %%\n",
                    mlp_accuracy(&net, test.images, test.labels, test.count));
    mlp_free(&net);
    digits_free(&train);
    digits_free(&test);
}

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: sharded_cpp FOLDER EPOCHS\n");
        return 2;
    }
    try {
        run(argv[1], std::atoi(argv[2]));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "sharded_cpp: %s\n", error.what());
        return 1;
    }
}
