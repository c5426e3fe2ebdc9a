package org.libddp;

/**
 * Where memory lies: on the CPU, or on a GPU (ddp/device.h).
 *
 * @param type the kind of device
 * @param index its number among devices of this kind, from 0
 */
public record Device(Type type, int index) {
    /** Kinds of devices. */
    public enum Type {
        /** The CPU, which counts as one device. */
        CPU(0),
        /** A GPU of NVIDIA. Needs libddp's CUDA module. */
        CUDA(1);

        final int code;

        Type(int code) {
            this.code = code;
        }

        static Type of(int code) {
            return values()[code];
        }
    }

    /** The CPU. */
    public static final Device CPU = new Device(Type.CPU, 0);

    /**
     * A device that need not exist: {@link #count} says how many there are.
     *
     * @param type the kind of device
     * @param index its number among devices of this kind, from 0
     */
    public Device {
        if (index < 0) throw new IllegalArgumentException("index: " + index + " is negative");
    }

    /**
     * {@return the GPU with this number}
     *
     * @param index from 0
     */
    public static Device cuda(int index) {
        return new Device(Type.CUDA, index);
    }

    /**
     * {@return the number of devices of this type, at least 1; an exception says why there is none}
     *
     * @param type the kind of device
     */
    public static int count(Type type) {
        int[] devices = new int[1];
        ddp.ddp_device_count(type.code, devices);
        return devices[0];
    }

    boolean isCpu() {
        return type == Type.CPU;
    }

    /** {@return "cpu", or "cuda:1"} */
    @Override
    public String toString() {
        return isCpu() ? "cpu" : "cuda:" + index;
    }
}
