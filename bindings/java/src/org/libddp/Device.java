package org.libddp;

/** Where memory lies: on the CPU, or on a GPU (ddp/device.h). */
public record Device(Type type, int index) {
    /** Kinds of devices. */
    public enum Type {
        CPU(0),
        /** Needs libddp's CUDA module. */
        CUDA(1);

        final int code;

        Type(int code) {
            this.code = code;
        }

        static Type of(int code) {
            return values()[code];
        }
    }

    public static final Device CPU = new Device(Type.CPU, 0);

    public Device {
        if (index < 0) throw new IllegalArgumentException("index: " + index + " is negative");
    }

    /** The GPU with this number, from 0. */
    public static Device cuda(int index) {
        return new Device(Type.CUDA, index);
    }

    /** The number of devices of this type; an exception says why there is none. */
    public static int count(Type type) {
        int[] devices = new int[1];
        ddp.ddp_device_count(type.code, devices);
        return devices[0];
    }

    /** A line about the device: its name, memory and driver. */
    public String describe() {
        byte[][] text = new byte[1][];
        ddp.ddp_device_describe(type.code, index, text);
        return Text.of(text[0]);
    }

    boolean isCpu() {
        return type == Type.CPU;
    }

    /** "cpu", or "cuda:1". */
    @Override
    public String toString() {
        return isCpu() ? "cpu" : "cuda:" + index;
    }
}
