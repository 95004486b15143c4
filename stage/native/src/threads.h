// A few threads that share a step's loops. Each takes a part of the outputs, never a part of a sum. A thread that
// has nothing to do spins for 50 microseconds, then sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Threads {
  public:
    explicit Threads(int count) {
        try {
            for (int i = 1; i < count; i++) workers_.emplace_back([this, i] { work(i); });
        } catch (...) {
            stop();
            throw;
        }
    }

    ~Threads() { stop(); }

    int count() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls task(thread) on every thread, and returns when all are done.
    template <class Task>
    void each(const Task& task) {
        if (workers_.empty()) return task(0);
        const std::function<void(int)> call = std::cref(task);
        run(&call);
        task(0);
        wait_until([this] { return pending_.load(std::memory_order_acquire) == 0; }, done_);
    }

    // Cuts [0, size) into one range for each thread.
    template <class Task>
    void split(int64_t size, const Task& task) {
        each([&](int thread) {
            const int64_t from = size * thread / count(), to = size * (thread + 1) / count();
            if (from < to) task(from, to);
        });
    }

  private:
    void stop() {
        run(nullptr);
        for (std::thread& worker : workers_) worker.join();
    }

    void run(const std::function<void(int)>* task) {
        pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        std::lock_guard<std::mutex> lock(mutex_);
        task_ = task;
        round_.fetch_add(1, std::memory_order_release);
        started_.notify_all();
    }

    void work(int thread) {
        uint64_t seen = 0;
        for (;;) {
            wait_until([&] { return round_.load(std::memory_order_acquire) != seen; }, started_);
            seen++;
            if (!task_) return;
            (*task_)(thread);
            if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    template <class Condition>
    void wait_until(const Condition& condition, std::condition_variable& signal) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
        do {
            for (int i = 0; i < 64; i++) {
                if (condition()) return;
                relax();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> lock(mutex_);
        signal.wait(lock, condition);
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable started_, done_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> pending_{0};
    const std::function<void(int)>* task_ = nullptr;
};

}  // namespace
