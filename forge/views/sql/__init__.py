"""SQL asked of one run or several: `forge sql`, the named questions, exports."""
