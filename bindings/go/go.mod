module libddp.org/ddp

go 1.19
