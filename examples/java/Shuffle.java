import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.Arrays;
import java.util.Random;
import org.libddp.Group;
import org.libddp.Memory;

/**
 * Deals the samples of all ranks anew, as between two epochs. Each rank has read files of its own;
 * after this any sample may be on any rank.
 *
 * <pre>ddprun -n 2 java -cp libddp.jar Shuffle.java</pre>
 */
class Shuffle {
    static LongBuffer longs(int count) {
        return ByteBuffer.allocateDirect(8 * count).order(ByteOrder.nativeOrder()).asLongBuffer();
    }

    public static void main(String[] arguments) {
        try (Group group = new Group()) {
            int rank = group.rank(), world = group.worldSize(), mine = 1000;
            // A sample is a number here: 0 to 999 on rank 0, 1,000 to 1,999 on rank 1.
            int[] to = new Random(rank).ints(mine, 0, world).toArray();
            LongBuffer send = longs(mine), sendCounts = longs(world), recvCounts = longs(world);
            for (int r = 0; r < world; ++r) {
                int before = send.position();
                for (int i = 0; i < mine; ++i)
                    if (to[i] == r) send.put((long) mine * rank + i);
                sendCounts.put(r, send.position() - before);
            }
            send.rewind();

            // First how many, then the samples.
            group.allToAll(sendCounts, recvCounts);
            long[] sent = new long[world], received = new long[world];
            sendCounts.get(sent);
            recvCounts.get(received);
            int count = (int) Arrays.stream(received).sum();
            LongBuffer recv = longs(count);
            group.allToAll(Memory.of(send), sent, Memory.of(recv), received);

            long sum = 0;
            while (recv.hasRemaining()) sum += recv.get();
            System.out.println("rank " + rank + ": " + count + " samples, sum " + sum + ", "
                    + received[rank] + " of its own");
        }
    }
}
