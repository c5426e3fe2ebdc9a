/* idx.h: reads a set of digits from the pair of IDX files in which MNIST is published. */
#ifndef EXAMPLES_IDX_H
#define EXAMPLES_IDX_H

/* Where the digits are, if the build does not say: as seen from this folder. */
#ifndef MNIST_DATA_DIR
#define MNIST_DATA_DIR "../data/mnist"
#endif

/* Images as rows of numbers from 0 (paper) to 1 (ink), and which digit each one shows. */
typedef struct digits {
    int count;
    int pixels; /* of one image */
    float* images;
    unsigned char* labels; /* 0 to 9 */
} digits;

/* Reads DIR/NAME-images-idx3-ubyte and DIR/NAME-labels-idx1-ubyte, with ".gz" appended or plain.
 * name: "train" or "t10k". Returns 0, or -1 after a message on stderr. */
int digits_load(digits* set, const char* dir, const char* name);

void digits_free(digits* set);

#endif /* EXAMPLES_IDX_H */
