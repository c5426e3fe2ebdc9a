package org.libddp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.libddp.Ranks.group;
import static org.libddp.Ranks.rank;
import static org.libddp.Ranks.world;
import static org.libddp.Support.raises;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** Parameters on a GPU, a real one or the tests' own, on several ranks. */
@TestMethodOrder(MethodOrderer.MethodName.class)
class DeviceTest {
    private static final int COUNT = 1000;
    private static final Device GPU = Device.cuda(0);
    private static final float MEAN = (world - 1) / 2f; // of the ranks' numbers

    private final long stream = TestDevice.makeStream(0);

    private Context context() {
        Context made = new Context(group);
        made.setStream(GPU, stream);
        return made;
    }

    private void assertHolds(float value, Memory memory, long on) {
        TestDevice.await(0, on);
        float[] expected = new float[COUNT];
        Arrays.fill(expected, value);
        assertArrayEquals(expected, TestDevice.floats(memory));
    }

    @Test
    void steps() {
        Memory data = TestDevice.full(COUNT, 10 + rank);
        Memory grad = TestDevice.full(COUNT, 0);
        Memory means = TestDevice.full(COUNT, 20 + rank);
        try (Context ctx = context()) {
            Parameter param = ctx.parameter("w").data(data).grad(grad).register();
            ctx.registerBuffer("means", means);
            assertEquals(GPU, param.device());
            ctx.commit();
            assertHolds(10, data, stream);
            assertHolds(20, means, stream);
            for (int step = 0; step < 3; ++step) {
                ctx.stepBegin();
                TestDevice.fill(grad, step + rank);
                param.readyOn(stream);
                if (step == 2) {
                    ctx.finalizeEnqueue();
                } else {
                    ctx.finalizeOn(stream);
                }
                assertHolds(step + MEAN, grad, stream);
            }
            TestDevice.fill(grad, rank);
            ctx.gradReady(param);
            ctx.finalizeStep();
            assertHolds(MEAN, grad, stream);
        }
    }

    @Test
    void anotherStreamWaits() {
        long other = TestDevice.makeStream(0);
        Memory grad = TestDevice.full(COUNT, rank);
        try (Context ctx = context()) {
            Parameter param = ctx.parameter("w").grad(grad).register();
            ctx.commit();
            ctx.gradReadyOn(param, stream);
            ctx.finalizeAsync();
            ctx.awaitParameterOn(param, other);
            assertHolds(MEAN, grad, other);
            ctx.finalizeOn(stream);
            raises(DdpException.InvalidState.class, "Context.awaitParameterOn",
                    () -> ctx.awaitParameterOn(param, other));
        }
        TestDevice.freeStream(other);
    }

    @Test
    void putAndGet() {
        long other = TestDevice.makeStream(0);
        Memory given = TestDevice.full(COUNT, rank);
        Memory back = TestDevice.full(COUNT, -1);
        try (Context ctx = context()) {
            Parameter param = ctx.parameter("w")
                                      .shape(COUNT)
                                      .dtype(Dtype.BF16)
                                      .gradDtype(Dtype.F32)
                                      .device(GPU)
                                      .register();
            ctx.commit();
            ctx.putOn(param, given, other);
            raises(DdpException.InvalidState.class, "under way",
                    () -> ctx.getOn(param, back, other));
            assertHolds(rank, given, other);
            TestDevice.fill(given, -5);
            ctx.finalizeOn(other);
            ctx.getOn(param, back, other);
            assertHolds(MEAN, back, other);
            raises(DdpException.InvalidArgument.class, "cuda:0",
                    () -> ctx.putOn(param, Memory.of(Support.full(COUNT, 1)), other));
        }
        TestDevice.freeStream(other);
    }

    @Test
    void viewsAndHooks() {
        List<Device> seen = new ArrayList<>();
        Memory view;
        try (Context ctx = context()) {
            Parameter param =
                    ctx.parameter("w").shape(COUNT).dtype(Dtype.F32).device(GPU).register();
            ctx.commit();
            ctx.setHook((on, bucket) -> {
                assertNotEquals(0, bucket.stream());
                seen.add(bucket.device());
                seen.add(bucket.gradients().get(0).memory().device());
                return on.allreduceAsync(bucket.buffer(), bucket.op());
            });
            view = param.view();
            assertEquals("Memory of F32[1000] on cuda:0", view.toString());
            raises(IllegalStateException.class, "cuda:0", view::floats);
            TestDevice.await(0, stream);
            TestDevice.fill(view, rank);
            ctx.gradReadyOn(param, stream);
            ctx.finalizeOn(stream);
            assertHolds(MEAN, view, stream);
        }
        assertHolds(MEAN, view, stream); // it may be kept
        assertEquals(List.of(GPU, GPU), seen);
    }

    @Test
    void whatCannotBeUsed() {
        Memory here = TestDevice.full(COUNT, 1);
        Memory host = Memory.of(Support.full(COUNT, 1));
        try (Context ctx = context()) {
            raises(IllegalArgumentException.class, "cpu and cuda:0",
                    () -> ctx.parameter("w").data(host).grad(here).register());
            raises(IllegalArgumentException.class, "cuda:1 and cuda:0",
                    () -> ctx.parameter("w").data(here).device(Device.cuda(1)).register());
            raises(DdpException.Unsupported.class, "cuda:99",
                    () -> ctx.parameter("w").shape(1).device(Device.cuda(99)).register());
            if (Device.count(Device.Type.CUDA) > 1) {
                Memory wrong = Memory.onDevice(Device.cuda(1), here.address(), Dtype.F32, COUNT);
                raises(DdpException.InvalidArgument.class, "cuda:0",
                        () -> ctx.parameter("w").data(wrong).register());
            }
            Parameter param = ctx.parameter("w").data(here).register();
            raises(IllegalArgumentException.class, "cuda:0",
                    () -> param.put(Support.full(COUNT, 1)));
            raises(DdpException.InvalidArgument.class, "no streams",
                    () -> ctx.setStream(Device.CPU, 0));
        }
        raises(DdpException.Unsupported.class, "communication hooks",
                () -> group.allreduce(here, Op.SUM));
        raises(IllegalArgumentException.class, "address",
                () -> Memory.onDevice(GPU, 0, Dtype.F32, 1));
        raises(IllegalArgumentException.class, "shape",
                () -> Memory.onDevice(GPU, 8, Dtype.F32, -1));
        raises(IllegalArgumentException.class, "Memory.of",
                () -> Memory.onDevice(Device.CPU, 8, Dtype.F32, 1));
        raises(IllegalArgumentException.class, "index", () -> Device.cuda(-1));
    }

    @Test
    void devices() {
        assertEquals(1, Device.count(Device.Type.CPU));
        if (TestDevice.isFake()) assertEquals(2, Device.count(Device.Type.CUDA));
    }
}
