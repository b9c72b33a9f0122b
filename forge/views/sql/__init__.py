"""SQL on one run or several: `forge sql`, named queries, numbered questions, exports."""
