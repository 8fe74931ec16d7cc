# Included with SLUICE, a program, and OUT, a folder: writes a manual page for the program and for each of its commands, from the tables
# from which the program prints its help.
execute_process(COMMAND ${SLUICE} --help=commands OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "\t[^\n]*" "" commands "${commands}")
string(REGEX MATCHALL "[^\n]+" commands "${commands}")
execute_process(COMMAND ${SLUICE} --help=man OUTPUT_FILE ${OUT}/sluice.1 COMMAND_ERROR_IS_FATAL ANY)
foreach(command ${commands})
  execute_process(COMMAND ${SLUICE} ${command} --help=man OUTPUT_FILE ${OUT}/sluice-${command}.1 COMMAND_ERROR_IS_FATAL ANY)
endforeach()
