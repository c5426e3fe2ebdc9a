import java.nio.file.Path;

/** The command line of Mnist.java: that of ../c/mnist.c. */
final class Settings {
    private static final String USAGE =
            "usage: Mnist [--data DIR] [--epochs N] [--batch N] [--lr X] [--momentum X] [--seed N] [--view | --copy] [--compare-local]\n"
            + "             [--hook NAME] [--hook-options K=V,...] [--average-every N] [--save FILE]\n"
            + "  --data DIR        folder with the four IDX files of MNIST, plain or .gz (default examples/data/mnist)\n"
            + "  --epochs N        passes over the training digits (default 10)\n"
            + "  --batch N         digits in a global batch, divided among the ranks (default 64)\n"
            + "  --lr X            learning rate (default 0.05), with --momentum X (default 0.9)\n"
            + "  --seed N          of the first weights and of the order of the digits (default 1)\n"
            + "  --view, --copy    gradients live in libddp's buckets (default), or in buffers of the program's\n"
            + "  --compare-local   train the same batches without libddp afterwards and compare the weights\n"
            + "  --hook NAME       communication hook, with --hook-options K=V,... (default allreduce)\n"
            + "  --average-every N average the models every N steps, for --hook post_local_sgd (default 0: never)\n"
            + "  --save FILE       rank 0's final weights, raw 32-bit floats one tensor after another";

    Path data = Path.of("examples", "data", "mnist");
    int epochs = 10;
    int batch = 64;
    float rate = 0.05f;
    float momentum = 0.9f;
    long seed = 1;
    boolean view = true;
    boolean compareLocal;
    String hook = "allreduce";
    String hookOptions = "";
    int averageEvery;
    Path save;

    Settings(String[] arguments) {
        try {
            for (int i = 0; i < arguments.length; ++i) {
                if (!flag(arguments[i])) option(arguments[i], arguments[++i]);
            }
        } catch (IllegalArgumentException | ArrayIndexOutOfBoundsException e) {
            System.err.println("Mnist: an option is unknown, or no value in its range follows it: "
                    + e.getMessage() + "\n" + USAGE);
            System.exit(2);
        }
    }

    private boolean flag(String name) {
        switch (name) {
            case "--help":
                System.out.println(USAGE);
                System.exit(0);
                return true;
            case "--view":
            case "--copy":
                view = name.equals("--view");
                return true;
            case "--compare-local":
                compareLocal = true;
                return true;
            default:
                return false;
        }
    }

    private void option(String name, String value) {
        switch (name) {
            case "--data":
                data = Path.of(value);
                break;
            case "--epochs":
                epochs = positive(value);
                break;
            case "--batch":
                batch = positive(value);
                break;
            case "--lr":
                rate = Float.parseFloat(value);
                break;
            case "--momentum":
                momentum = Float.parseFloat(value);
                break;
            case "--seed":
                seed = Long.parseLong(value);
                break;
            case "--hook":
                hook = value;
                break;
            case "--hook-options":
                hookOptions = value;
                break;
            case "--average-every":
                averageEvery = Integer.parseInt(value);
                break;
            case "--save":
                save = Path.of(value);
                break;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static int positive(String value) {
        int number = Integer.parseInt(value);
        if (number < 1) throw new IllegalArgumentException(value);
        return number;
    }
}
