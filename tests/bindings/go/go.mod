module libddp.org/tests

go 1.19

require libddp.org/ddp v0.0.0

replace libddp.org/ddp => ../../../bindings/go
