import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.zip.GZIPInputStream;

/** A set of digits, from the pair of IDX files in which MNIST is published. */
final class Idx {
    private static final int LABELS = 0x801;
    private static final int IMAGES = 0x803;

    /** From 0 (paper) to 1 (ink), one image after the other. */
    final float[] images;
    /** Which digit each one shows. */
    final byte[] labels;

    private Idx(float[] images, byte[] labels) {
        this.images = images;
        this.labels = labels;
    }

    int count() {
        return labels.length;
    }

    /** name: "train" or "t10k". */
    static Idx load(Path folder, String name) throws IOException {
        byte[] labels = read(folder, name + "-labels-idx1-ubyte", LABELS);
        byte[] pixels = read(folder, name + "-images-idx3-ubyte", IMAGES);
        if (pixels.length != labels.length * Mlp.WIDTHS[0])
            throw new IOException(name + ": images and labels do not match");
        float[] images = new float[pixels.length];
        for (int i = 0; i < images.length; ++i) images[i] = (pixels[i] & 0xff) / 255f;
        return new Idx(images, labels);
    }

    private static InputStream open(Path folder, String name) throws IOException {
        Path compressed = folder.resolve(name + ".gz");
        if (Files.exists(compressed)) return new GZIPInputStream(Files.newInputStream(compressed));
        return Files.newInputStream(folder.resolve(name));
    }

    /** The bytes after the header, whose numbers are big-endian, as Java's are. */
    private static byte[] read(Path folder, String name, int magic) throws IOException {
        try (DataInputStream file = new DataInputStream(open(folder, name))) {
            if (file.readInt() != magic)
                throw new IOException(name + " is not the IDX file that it should be");
            int size = 1;
            for (int dimension = 0; dimension < (magic & 0xff); ++dimension)
                size = Math.multiplyExact(size, file.readInt());
            byte[] bytes = file.readNBytes(size);
            if (bytes.length != size) throw new IOException(name + " is cut short");
            return bytes;
        }
    }
}
