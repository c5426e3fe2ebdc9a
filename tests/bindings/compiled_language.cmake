# The tests that Rust and Go have alike. Their folders set, before they include this, `language` and `programs`, the folder in which their
# programs are built: alone, ranks, killed, lost, minimal and mnist.

# A ddp.pc for the library in the build tree.
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/pkgconfig/ddp.pc CONTENT
  "Name: ddp\nDescription: libddp in the build tree\nVersion: ${PROJECT_VERSION}\nLibs: -L$<TARGET_FILE_DIR:ddp> -lddp\nCflags: -I${PROJECT_SOURCE_DIR}/include\n")
set(environment "PKG_CONFIG_PATH=${CMAKE_CURRENT_BINARY_DIR}/pkgconfig" "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:ddp>"
  "DDPRUN=$<TARGET_FILE:ddprun>" OMP_NUM_THREADS=1)

# ddp_language_test(name seconds command...), after what the fixture builds.
function(ddp_language_test name seconds)
  add_test(NAME ${language}.${name} COMMAND ${ARGN})
  set_tests_properties(${language}.${name} PROPERTIES TIMEOUT ${seconds} ENVIRONMENT "${environment}" FIXTURES_REQUIRED ${language}_built
    SKIP_REGULAR_EXPRESSION "^skipped:")
endfunction()

# Instead of all tests, where the language is not there.
function(ddp_language_skipped reason)
  ddp_language_test(build 10 ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(${language}.build PROPERTIES FIXTURES_REQUIRED "")
endfunction()

# The programs. compiler: for installed_test.py of the folder.
function(ddp_language_programs compiler)
  ddp_language_test(alone 100 ${programs}/alone)
  foreach(ranks 2 3)
    ddp_language_test(ranks.${ranks} 100 ddprun -n ${ranks} ${programs}/ranks)
  endforeach()
  ddp_language_test(programs 600 Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/tests/bindings/compiled_programs.py ${programs}
    $<$<TARGET_EXISTS:mnist>:$<TARGET_FILE:mnist>>)
  ddp_language_test(installed 600 Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/installed_test.py ${compiler}
    ${PROJECT_BINARY_DIR}/tests/install/prefix ${CMAKE_INSTALL_LIBDIR})
  set_tests_properties(${language}.installed PROPERTIES FIXTURES_REQUIRED installed_tree)
  if(TARGET mnist)
    ddp_language_test(one_job 300 Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/tests/bindings/one_job_test.py $<TARGET_FILE:mnist>
      ${CMAKE_CURRENT_BINARY_DIR} --rank ${programs}/mnist --data ${PROJECT_SOURCE_DIR}/examples/data/mnist)
  endif()
  foreach(test alone ranks.2 ranks.3 programs installed one_job)
    ddp_only_with_all(${language}.${test})
  endforeach()
endfunction()
