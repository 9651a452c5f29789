"""server_test.py [CASE...]: every case, or those whose names hold one of the words. The last line is `N passed, N failed`."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def main():
    words = sys.argv[1:]
    names = ["answers_test", "vectors_test", "tools_test", "requests_test", "limits_test"]
    suite = unittest.TestSuite(case for case in cases(unittest.defaultTestLoader.loadTestsFromNames(names))
                               if not words or any(word in case.id() for word in words))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len({test.id() for test, _ in result.failures + result.errors})
    print("%d passed, %d failed" % (max(result.testsRun - failed, 0), failed))
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
