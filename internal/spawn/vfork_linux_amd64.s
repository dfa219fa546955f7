#include "go_asm.h"
#include "textflag.h"

// func vforkScript(args *cloneArgs, first *Step, fail *uintptr) uintptr
//
// The child owns R12 (step) and R13 (fail) and touches no stack: it runs on its suspended parent's.
TEXT ·vforkScript(SB),NOSPLIT|NOFRAME,$0-32
	MOVQ args+0(FP), DI
	MOVQ $cloneArgs__size, SI
	MOVQ first+8(FP), R12
	MOVQ fail+16(FP), R13
	MOVQ $435, AX // clone3
	SYSCALL
	TESTQ AX, AX
	JZ run
	MOVQ AX, ret+24(FP)
	RET
run:
	MOVQ Step_nr(R12), AX
	MOVQ (Step_args+0)(R12), DI
	MOVQ (Step_args+8)(R12), SI
	MOVQ (Step_args+16)(R12), DX
	MOVQ (Step_args+24)(R12), R10
	MOVQ (Step_args+32)(R12), R8
	MOVQ (Step_args+40)(R12), R9
	SYSCALL
	// A clone's child comes here with 0 and goes on with its own script.
	TESTQ AX, AX
	JNZ parent
	MOVQ Step_child(R12), BX
	TESTQ BX, BX
	JZ parent
	MOVQ BX, R12
	JMP run
parent:
	MOVQ AX, Step_result(R12)
	CMPQ AX, $0xfffffffffffff001
	JCC failed
	MOVQ Step_saveA(R12), BX
	TESTQ BX, BX
	JZ next
	MOVQ AX, (BX)
	MOVQ Step_saveB(R12), BX
	TESTQ BX, BX
	JZ next
	MOVQ AX, (BX)
next:
	MOVQ Step_next(R12), R12
	TESTQ R12, R12
	JNZ run
	MOVQ $0, DI
	JMP exit
failed:
	MOVQ Step_onErr(R12), BX
	TESTQ BX, BX
	JNZ jump
	MOVQ Step_ignore(R12), BX
	TESTQ BX, BX
	JNZ next
	// The first failure is the cause; an outer script that goes on must not overwrite it.
	MOVQ 8(R13), BX
	TESTQ BX, BX
	JNZ die
	MOVQ R12, 0(R13)
	MOVQ AX, 8(R13)
die:
	MOVQ $127, DI
	JMP exit
jump:
	MOVQ BX, R12
	JMP run
exit:
	MOVQ $231, AX // exit_group
	SYSCALL
	INT $3
